"""Every bench runs: one short round, without peers. What they claim in bytes is judged, seconds are not."""

import json
import os
import pathlib
import py_compile
import subprocess
import sys
import tempfile
import unittest

import penstock_cli as cli

BENCH = cli.REPOSITORY / "bench"
PROGRAMS = pathlib.Path(os.environ["PENSTOCK_BENCHES"])  # where the programs of bench/ are
SHAPE = ("--layers", 2, "--width", 64, "--heads", 2, "--context", 32, "--vocabulary", 100, "--batch", 4, "--threads", 1)
ONE_ROUND = ("--rounds", 1, "--steps", 2)


class Benches(unittest.TestCase):
    def run_script(self, name, *arguments):
        """A peer that is imported all the same would be found: there is no torch for this Python."""
        with tempfile.TemporaryDirectory() as empty:
            (pathlib.Path(empty) / "torch.py").write_text("raise ImportError('a bench without peers imports torch')\n")
            done = subprocess.run(
                [sys.executable, BENCH / name, *map(str, arguments)],
                capture_output=True,
                text=True,
                timeout=cli.TIMEOUT_S,
                env={**os.environ, "PYTHONPATH": empty},
            )
        self.assertEqual(done.returncode, 0, f"{name}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def test_step(self):
        for precision in ("float32", "bfloat16"):
            result = json.loads(
                self.run_script("step.py", "--program", PROGRAMS / "penstock_bench_step", *SHAPE, *ONE_ROUND,
                                "--precision", precision, "--peers", "none", "--json"))
            self.assertGreater(result["penstock_ms"], 0)
            self.assertGreater(result["tokens_per_second"], 0)

    def test_recompute(self):
        result = json.loads(
            self.run_script("recompute.py", "--program", PROGRAMS / "penstock_bench_recompute", *SHAPE, *ONE_ROUND,
                            "--peers", "none", "--json"))
        again = [row["plan"]["recomputed_forwards"] for row in result["timed"]]
        self.assertEqual(again, sorted(again, reverse=True))
        self.assertGreater(again[0], 0)
        self.assertEqual(again[-1], 0)

    def test_limits(self):
        text = self.run_script("limits.py", "--program", PROGRAMS / "penstock_bench_recompute", *SHAPE, *ONE_ROUND,
                               "--limits", 3, "--turns", 2, "--any-speed")
        self.assertIn("different gradients: 0", text)

    def test_the_solver(self):
        done = subprocess.run([PROGRAMS / "penstock_bench_solve", "8", "100"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 4)

    def test_pipelines(self):
        text = self.run_script("pipeline_speed.py", "--penstock", cli.PROGRAM, "--rounds", 1, "--steps", 2,
                               "--schedules", "1f1b", "--any-speed")
        self.assertRegex(text, r"\| 1f1b \| \d\.\d+")
        text = self.run_script("pipeline_slots.py", "--penstock", cli.PROGRAM, "--rounds", 1, "--steps", 2, "--any-speed")
        self.assertIn("| gpipe | 2 | 100MiB | rotor |", text)

    def test_compare(self):
        text = self.run_script("compare.py", "--base", cli.PROGRAM, "--noise", "--only", "plain", "--only", "resume-onebit-adam",
                               "--times", 1)
        self.assertRegex(text, r"2 of 2 cases equal, 0 differ, 0 could not be compared")
        self.assertRegex(text, r"plain +\d+\.\d\d ms +\d+\.\d\d ms")

    def test_the_step_of_the_command_line(self):
        words = [word for key, value in cli.SMALL_STEP.items() for word in ("--set", f"{key}={value}")]
        result = cli.run("bench", "step", "--peers", "none", "--batch", "2", "--warm", "0.01", "--window", "0.01", "--rounds", "1",
                         "--json", *words, cwd=BENCH)
        self.assertEqual(result.code, 0, result)

    def test_scripts_for_a_gpu_compile(self):
        for script in BENCH.glob("*.py"):
            with self.subTest(script=script.name), tempfile.TemporaryDirectory() as folder:
                py_compile.compile(script, cfile=pathlib.Path(folder) / "compiled", doraise=True)


if __name__ == "__main__":
    cli.main()
