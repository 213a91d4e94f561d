"""The docs say what is true: paths that they name exist, and the option tables are those of the program."""
import pathlib
import re
import subprocess
import sys
import unittest

from penstock_cli import PROGRAM

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"), ROOT / "src/penstock/README.md"])
TOP = r"(?:src|app|docs|tests|tools|bench|examples|recipes|cmake|\.ci)"


class Docs(unittest.TestCase):
    def test_named_paths_exist(self):
        for page in PAGES:
            text = page.read_text()
            links = re.findall(r"\]\(([^)#:]+)\)", text)
            for link in links:
                self.assertTrue((page.parent / link).exists(), f"{page.name} links to {link}")
            for path in re.findall(rf"`({TOP}/[\w./-]+)`", text):
                self.assertTrue((ROOT / path).exists(), f"{page.name} names {path}")

    def test_option_tables_are_the_programs(self):
        tables = subprocess.run([PROGRAM, "options", "--markdown"], check=True, capture_output=True, text=True).stdout
        page = (ROOT / "docs/recipes.md").read_text()
        self.assertIn(f"<!-- options -->\n{tables}<!-- /options -->", page,
                      "paste the output of 'penstock options --markdown' into docs/recipes.md")

    def test_families_are_named_in_their_folders_alone(self):
        found = []
        for folder in ("src", "app"):
            for path in sorted((ROOT / folder).rglob("*")):
                inside = path.relative_to(ROOT)
                is_source = path.is_file() and path.suffix in {".h", ".cpp", ".cu", ".cuh", ".def", ".txt", ".cmake"}
                if is_source and not re.match(r"src/penstock/model/[^/]+/", str(inside)):
                    lines = enumerate(path.read_text().splitlines(), start=1)
                    found += [f"{inside}:{n}" for n, line in lines if re.search(r"gpt-?2|llama", line, re.IGNORECASE)]
        self.assertEqual({line.split(":")[0] for line in found}, {"src/penstock/config/families.def"}, found)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
