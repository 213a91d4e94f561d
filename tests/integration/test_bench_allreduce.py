"""`penstock bench allreduce`: its tables and its JSON, for ranks as threads and under mpirun."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import penstock_cli as cli

MPIRUN = shutil.which("mpirun")
FLAGS = ("--ranks", "--least", "--most", "--element", "--seconds", "--json")
ALGORITHMS = ("naive", "tree", "butterfly", "ring", "direct")
QUICK = ("bench", "allreduce", "--least", "4KiB", "--most", "64KiB", "--seconds", "0")


class AllReduce(cli.CliTestCase):
    def check_tables(self, text, algorithms, sizes=3):
        blocks = text.split("\n\n")
        self.assertEqual(len(blocks), 4, text)
        for block, unit in zip(blocks[1:3], ("ms", "GB/s")):
            heading, _, *rows = block.splitlines()
            self.assertEqual(heading.split(), [unit, *algorithms])
            self.assertEqual(len(rows), sizes, text)
            for row in rows:
                self.assertEqual(row.count("*"), 1, "one is the best")
        self.assertEqual([line.split()[0] for line in blocks[3].splitlines()[2:]], list(algorithms))

    def check_json(self, file, ranks, algorithms):
        found = json.loads((self.folder / file).read_text())
        self.assertEqual(found["ranks"], ranks)
        self.assertEqual(set(found["algorithms"]), set(algorithms))
        for cost in found["algorithms"].values():
            self.assertGreaterEqual(cost["latency_s"], 0)
            self.assertGreater(cost["bytes_per_s"], 0)
        rows = [(row["bytes"], row["algorithm"]) for row in found["rows"]]
        self.assertEqual(rows, [(size, name) for size in (4096, 16384, 65536) for name in algorithms])
        self.assertTrue(all(row["seconds"] > 0 for row in found["rows"]))

    def test_help(self):
        text = self.run_program("bench", "allreduce", "--help").stdout
        for needle in (*FLAGS, "bfloat16", "64MiB", "docs/collectives.md"):
            self.assertIn(needle, text)
        found = set(re.findall(r"(?<!\S)(?:-\w,)?(--[a-z-]+)", text))
        self.assertLessEqual(found, {*FLAGS, "--help", "--version", "--quiet"})

    def test_threads(self):
        for ranks, element in ((2, "float32"), (3, "bfloat16")):
            result = self.run_program(*QUICK, "--ranks", ranks, "--element", element, "--json", "links.json")
            self.assertEqual(result.code, 0, result)
            self.assertTrue(result.stdout.startswith(f"all-reduce of {element} over {ranks} ranks, which are threads\n"))
            self.check_tables(result.stdout, ALGORITHMS)
            self.check_json("links.json", ranks, ALGORITHMS)
            self.assertIn("bench allreduce 0/3  4.0 KiB", result.stderr)

    @unittest.skipIf(MPIRUN is None, "there is no mpirun")
    def test_mpirun(self):
        allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        command = [MPIRUN, "--oversubscribe", "-n", "3", cli.PROGRAM]
        options = {"cwd": self.folder, "env": {**os.environ, **allow}, "capture_output": True, "text": True}

        def run(*more):
            return subprocess.run([*command, *QUICK, *more], timeout=cli.TIMEOUT_S, check=False, **options)

        result = run("--json", "links.json")
        self.assertEqual(result.returncode, 0, result)
        self.assertIn("over 3 ranks, which are processes\n", result.stdout)
        self.check_tables(result.stdout, (*ALGORITHMS, "own"))
        self.check_json("links.json", 3, (*ALGORITHMS, "own"))
        refused = run("--ranks", "2")
        self.assertEqual(refused.returncode, 2, refused)
        self.assertIn("penstock: --ranks 2, but the launcher started 3; leave --ranks out", refused.stderr)

    def test_refusals(self):
        for arguments, needles in (
            (("--least", "1MiB", "--most", "1KiB"), ("--least 1MiB", "--most 1KiB", "try --most 1MiB")),
            (("--least", "3"), ("--least", '"3"', "from 4 to 16GiB")),
            (("--most", "1TiB"), ("--most", '"1TiB"', "from 4 to 16GiB")),
            (("--most", "much"), ("--most", '"much"', "64KiB")),
            (("--ranks", "1"), ("--ranks", "2 to 256")),
            (("--element", "float16"), ("--element", "float16", "bfloat16")),
            (("--seconds", "-1"), ("--seconds",)),
            (("--json", "nowhere/links.json"), ("nowhere/links.json", "there is no folder")),
            (("--json", ""), ("--json", "must not be empty")),
        ):
            with self.subTest(arguments=arguments):
                self.assert_fails(self.run_program("bench", "allreduce", *arguments), *needles)

    def test_ctrl_c_leaves_what_was_measured(self):
        arguments = ("bench", "allreduce", "--least", "4KiB", "--most", "1GiB", "--ranks", "2", "--seconds", "0.2")
        process = cli.start(*arguments, cwd=self.folder)
        line = ""
        while "16.0 KiB" not in line:  # of the second size
            line = process.stderr.readline()
            self.assertNotEqual(line, "", "ended by itself")
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        result = cli.finish(process, arguments)
        self.assertLess(time.monotonic() - start, 30)
        self.assertEqual(result.code, 0, result)
        self.assertIn("4.0 KiB", result.stdout)


if __name__ == "__main__":
    cli.main()
