"""Runs the real program the way a user does. Shared by the integration tests; Python 3, standard
library only.

The program is the one that `--penstock PATH` on the command line names, else the environment
variable PENSTOCK, else build/penstock of this checkout.
"""

import errno
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TIMEOUT_S = 120

# layers 2, width 32, heads 4, context 32, vocabulary 256: 35 thousand parameters, 2 ms a step.
TINY = {
    "model.layers": 2,
    "model.width": 32,
    "model.heads": 4,
    "model.context": 32,
    "model.vocabulary": 256,
    "model.dropout": 0.0,
    "data.path": "corpus.txt",
    "train.steps": 6,
    "train.batch": 4,
    "train.lr": 1e-3,
    "run.out": "out",
    "run.threads": 1,
}
# What makes `penstock bench step` a matter of a millisecond on the CPU.
SMALL_STEP = {
    "run.device": "cpu",
    "run.threads": 1,
    "train.precision": "float32",
    "model.layers": 1,
    "model.width": 64,
    "model.heads": 2,
    "model.context": 32,
    "model.vocabulary": 100,
}
CHECKPOINT_FILES = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "recipe.toml",
    "config.json",
    "manifest.json",
)


def _take_program_argument():
    for i, argument in enumerate(sys.argv):
        if argument == "--penstock" and i + 1 < len(sys.argv):
            path = sys.argv[i + 1]
            del sys.argv[i : i + 2]  # unittest does not know it
            return path
    return os.environ.get("PENSTOCK", str(REPOSITORY / "build" / "penstock"))


PROGRAM = os.path.abspath(_take_program_argument())


class Result:
    def __init__(self, arguments, code, stdout, stderr):
        self.arguments = arguments
        self.code = code
        self.stdout = stdout
        self.stderr = stderr

    def json(self):
        return json.loads(self.stdout)

    def errors(self):
        return [line for line in self.stderr.splitlines() if line.startswith("penstock: ")]

    def __str__(self):
        command = " ".join(["penstock", *map(str, self.arguments)])
        return f"$ {command}\nexit code {self.code}\nstdout: {self.stdout}\nstderr: {self.stderr}"


def start(*arguments, cwd, **options):
    """The program, under way. Waits out the moments in which a build replaces it."""
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    for attempts_left in range(60, -1, -1):
        try:
            return subprocess.Popen(
                [PROGRAM, *map(str, arguments)],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                errors="replace",
                **options,
            )
        except OSError as error:
            being_replaced = error.errno in (errno.ENOENT, errno.EACCES, errno.ETXTBSY)
            if not being_replaced or not os.path.isdir(cwd) or attempts_left == 0:
                raise
            time.sleep(1)


def finish(process, arguments=(), timeout=TIMEOUT_S):
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise AssertionError(f"no end after {timeout} s: {arguments}\n{stdout}\n{stderr}") from None
    return Result(arguments, process.returncode, stdout or "", stderr or "")


def run(*arguments, cwd, timeout=TIMEOUT_S, **options):
    return finish(start(*arguments, cwd=cwd, **options), arguments, timeout)


def settings(values):
    """{"train.steps": 5} -> ["--set", "train.steps=5"]"""
    flags = []
    for key, value in values.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        flags += ["--set", f"{key}={text}"]
    return flags


def recipe_text(values):
    sections = {}
    for key, value in values.items():
        section, name = key.split(".")
        # JSON's text, numbers and true/false read as TOML.
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    return "\n\n".join(f"[{name}]\n" + "\n".join(lines) for name, lines in sections.items()) + "\n"


def corpus_text(lines=600):
    return "".join(
        f"line {i} of the corpus: {i * i % 97} sheep, {i * 31 % 53} goats and {i % 7} dogs.\n"
        for i in range(lines)
    )


def make_workspace(folder, overrides=None):
    """A folder with corpus.txt and recipe.toml."""
    folder = pathlib.Path(folder)
    (folder / "corpus.txt").write_text(corpus_text())
    (folder / "recipe.toml").write_text(recipe_text({**TINY, **(overrides or {})}))
    return folder


def checkpoint_steps(run_folder):
    """Steps of the step-* folders that have a manifest, ascending."""
    steps = []
    try:
        names = os.listdir(run_folder)
    except FileNotFoundError:
        return steps
    for name in names:
        digits = name[len("step-") :]
        has_manifest = os.path.exists(os.path.join(run_folder, name, "manifest.json"))
        if name.startswith("step-") and digits.isdigit() and has_manifest:
            steps.append(int(digits))
    return sorted(steps)


def host_name():
    """As names of files have it."""
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())


def temporaries(folder):
    """What should not outlast a run: temporaries of any sort, and its lock, at any depth."""
    return [
        str(path.relative_to(folder))
        for path in pathlib.Path(folder).rglob("*")
        if path.name.startswith((".tmp", ".writable"))
        or ".tmp" in path.name
        or path.name.endswith(".old")
        or path.name == "run.lock"
    ]


def metrics(run_folder):
    lines = (pathlib.Path(run_folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def metric_losses(run_folder):
    """[(step, loss), ...] as they stand in metrics.jsonl."""
    return [(entry["step"], entry["loss"]) for entry in metrics(run_folder) if "loss" in entry]


def snapshot(folder):
    """Every file and link below, with its content."""
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def _crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC32C = _crc32c_table()


def crc32c(data):
    table = _CRC32C
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def checkpoint_damage(folder, step):
    """What is wrong with a checkpoint by its manifest; "" when nothing is. Shares no code with the
    program."""
    folder = pathlib.Path(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    said = manifest.pop("crc32c")
    content = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode()
    if f"{crc32c(content):08x}" != said:
        return "manifest.json does not match its own checksum"
    listed = {record["name"] for record in manifest["files"]} | {"manifest.json"}
    if listed != set(CHECKPOINT_FILES) or listed != set(os.listdir(folder)):
        return f"manifest lists {sorted(listed)}, the folder has {sorted(os.listdir(folder))}"
    for record in manifest["files"]:
        data = (folder / record["name"]).read_bytes()
        if len(data) != record["bytes"]:
            return f"{record['name']} has {len(data)} bytes, the manifest says {record['bytes']}"
        if f"{crc32c(data):08x}" != record["crc32c"]:
            return f"{record['name']} does not match its checksum"
    state = json.loads((folder / "state.json").read_text())
    if not state["step"] == manifest["step"] == step:
        return f"its state is of step {state['step']}, its manifest of step {manifest['step']}"
    return ""


class CliTestCase(unittest.TestCase):
    """Each test gets a folder of its own with a corpus and a recipe, and runs the program there."""

    maxDiff = 2000

    def setUp(self):
        self.folder = make_workspace(tempfile.mkdtemp(prefix="penstock-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def write_recipe(self, overrides=None, name="recipe.toml"):
        (self.folder / name).write_text(recipe_text({**TINY, **(overrides or {})}))

    def run_program(self, *arguments, **options):
        options.setdefault("cwd", self.folder)
        return run(*arguments, **options)

    def train(self, values=None, *flags, recipe="recipe.toml", **options):
        """`penstock train` with --json; `values` become --set. Must succeed; gives the JSON."""
        result = self.run_program(
            "train", recipe, "--json", *settings(values or {}), *flags, **options
        )
        self.assertEqual(result.code, 0, result)
        return result.json()

    def assert_same_file(self, first, second):
        same = (self.folder / first).read_bytes() == (self.folder / second).read_bytes()
        self.assertTrue(same, f"{first} and {second} differ")

    def assert_fails(self, result, *needles, code=2):
        """One line that begins with "penstock: " and holds every needle, and nothing else but
        information before it. Gives the line."""
        self.assertEqual(result.code, code, result)
        self.assertEqual(result.stdout, "", result)
        self.assertEqual(len(result.errors()), 1, result)
        self.assertEqual(result.stderr.splitlines()[-1], result.errors()[0], result)
        for noise in ("terminate called", "what():", "frame #", "c10::", "std::", "\x1b"):
            self.assertNotIn(noise, result.stderr, result)
        line = result.errors()[0]
        for needle in needles:
            self.assertIn(needle, line, result)
        return line


def main():
    unittest.main(verbosity=2)
