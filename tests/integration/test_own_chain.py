"""A user's own program: killed at any moment, it goes on from what it saved, in any layout, with the bits of a run that
nobody killed, the statistics of its batch norms included."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import penstock_cli as cli

# Beside the tests' other programs.
PROGRAM = pathlib.Path(os.environ["PENSTOCK_OWN_CHAIN"])
MPIRUN = shutil.which("mpirun")
STEPS = 200
FILES = ("model.safetensors", "optimizer.safetensors", "layers.safetensors")


class OwnChain(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock-own-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, out, *settings, ranks=1):
        launcher = [] if ranks == 1 else [MPIRUN, "--oversubscribe", "-n", str(ranks)]
        return subprocess.Popen(
            [*launcher, PROGRAM, out, str(STEPS), *settings],
            cwd=self.folder,
            env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run_to_the_end(self, out, *settings, ranks=1):
        result = cli.finish(self.start(out, *settings, ranks=ranks), [out, *settings])
        self.assertEqual(result.code, 0, result)
        return json.loads(result.stdout.splitlines()[-1])

    def kill_after_saves(self, out, saves, *settings):
        """As many, and then a moment, which may be in the middle of the next."""
        process = self.start(out, *settings)
        deadline = time.monotonic() + 60
        while len(list((self.folder / out).glob("step-*/manifest.json"))) < saves:
            self.assertIsNone(process.poll(), "it ended before it was killed")
            self.assertLess(time.monotonic(), deadline, "it saves nothing")
            time.sleep(0.001)
        time.sleep(random.Random(saves).uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.assertEqual(process.returncode, -signal.SIGKILL)

    def assert_same_end(self, out, other):
        for name in FILES:
            ours = (self.folder / out / f"step-{STEPS:08}" / name).read_bytes()
            theirs = (self.folder / other / f"step-{STEPS:08}" / name).read_bytes()
            self.assertTrue(ours == theirs, f"{name} of {out}")

    def test_goes_on_after_a_kill_on_one_device_and_on_two_ranks(self):
        whole = self.run_to_the_end("whole", "--least")
        self.assertLess(whole["losses"][-1], whole["losses"][0])
        limit = f"plan.memory={(whole['least'] + whole['peak']) // 2}"
        one, two = "plan.pipeline=1", "plan.pipeline=2"
        always = ("run.save_every=5", "run.keep=3")
        for saves, (first, second) in enumerate(
            (((one, limit), (one, limit)), ((one,), (two,)), ((two,), (one, limit)), ((two,), (two,))), start=1
        ):
            with self.subTest(first=first, second=second):
                shutil.rmtree(self.folder / "killed", ignore_errors=True)
                self.kill_after_saves("killed", min(saves, 3), *always, *first)
                rest = self.run_to_the_end("killed", *always, *second, "--resume")
                self.assertGreater(rest["first"], 0)
                self.assertLess(rest["first"], STEPS)
                self.assertEqual(rest["losses"], whole["losses"][rest["first"] :])
                self.assert_same_end("killed", "whole")

    @unittest.skipIf(MPIRUN is None, "there is no mpirun")
    def test_processes_have_the_bits_of_threads(self):
        settings = ("plan.pipeline=2", "plan.data=2", "plan.shard=parameters")
        threads = self.run_to_the_end("threads", *settings)
        processes = self.run_to_the_end("processes", *settings, "plan.collectives=direct", ranks=4)
        self.assertEqual(processes["losses"], threads["losses"])
        self.assert_same_end("processes", "threads")


if __name__ == "__main__":
    unittest.main(verbosity=2)
