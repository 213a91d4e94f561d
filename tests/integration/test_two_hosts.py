"""One run folder, two hosts: the same recipe started on both must not destroy the live run. The hosts are
namespaces of host names, which tell a program that it is elsewhere."""

import json
import os
import shutil
import signal
import subprocess
import time
import unittest

import penstock_cli as cli

UNSHARE = ["unshare", "--user", "--map-root-user", "--uts"]


def can_unshare():
    if shutil.which("unshare") is None or shutil.which("hostname") is None:
        return False
    return subprocess.run([*UNSHARE, "hostname", "alpha"], capture_output=True).returncode == 0


@unittest.skipUnless(can_unshare(), "namespaces of host names cannot be made here")
class TwoHosts(cli.CliTestCase):
    def setUp(self):
        super().setUp()
        self.write_recipe({"train.steps": 1000000, "run.save_every": 200, "run.keep": 0})
        self.lock = self.folder / "out/run.lock"

    def start_on(self, host, *arguments):
        command = [*UNSHARE, "sh", "-c", 'hostname "$0" && exec "$@"', host, cli.PROGRAM, "train", "recipe.toml", "--json"]
        return subprocess.Popen([*command, *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)

    def begin_on(self, host):
        """A run that has saved at least once."""
        process = self.start_on(host)
        deadline = time.monotonic() + cli.TIMEOUT_S
        while not cli.checkpoint_steps(self.folder / "out") and time.monotonic() < deadline:
            self.assertIsNone(process.poll(), "ended by itself")
            time.sleep(0.01)
        return process

    def owner(self):
        return json.loads(self.lock.read_text())

    def test_the_second_is_refused_and_the_first_goes_on(self):
        first = self.begin_on("alpha")
        number = self.owner()["pid"]
        second = cli.finish(self.start_on("beta"), ["on beta"])
        self.assert_fails(second, "is in use by another run", f"process {number} on host alpha", "run.out=DIR", code=2)
        before = cli.checkpoint_steps(self.folder / "out")[-1]
        time.sleep(1)
        first.send_signal(signal.SIGINT)
        stopped = cli.finish(first, ["on alpha"])
        self.assertEqual(stopped.code, 0, stopped)
        steps = cli.checkpoint_steps(self.folder / "out")
        self.assertGreater(steps[-1], before)
        self.assertEqual(steps[-1], len(stopped.json()["losses"]))
        for step in steps:
            self.assertEqual(cli.checkpoint_damage(self.folder / f"out/step-{step:08d}", step), "")
        self.assertEqual(cli.temporaries(self.folder), [])

    def test_a_silent_host_loses_the_folder_and_its_leftovers_stay(self):
        first = self.begin_on("alpha")
        os.kill(self.owner()["pid"], signal.SIGKILL)
        first.wait()
        cli.finish(first, [])
        os.utime(self.lock, (time.time() - 1000,) * 2)  # as it looks a while later
        leftover = self.folder / f"out/.tmp-step-00000009-alpha-{2**22 + 1}"
        leftover.mkdir()
        step = cli.checkpoint_steps(self.folder / "out")[-1]
        flags = ("--resume", "auto", "--set", f"train.steps={step + 5}")
        second = cli.finish(self.start_on("beta", *flags), ["on beta"])
        self.assertEqual(second.code, 0, second)
        self.assertEqual(second.json()["first_step"], step)
        self.assertIn("is a leftover of host alpha", second.stderr)
        self.assertTrue(leftover.exists(), "what another host may be writing was removed")
        third = cli.finish(self.start_on("alpha", *flags), ["on alpha"])
        self.assertEqual(third.code, 0, third)
        self.assertFalse(leftover.exists())

    def test_who_has_lost_the_folder_writes_nothing_more(self):
        first = self.begin_on("alpha")
        first.send_signal(signal.SIGSTOP)  # unshare, sh and the program are one process by now
        os.kill(self.owner()["pid"], signal.SIGSTOP)
        time.sleep(0.2)
        os.utime(self.lock, (time.time() - 1000,) * 2)
        step = cli.checkpoint_steps(self.folder / "out")[-1]
        flags = ("--resume", "auto", "--set", f"train.steps={step + 5}")
        number = self.owner()["pid"]
        second = cli.finish(self.start_on("beta", *flags), ["on beta"])
        self.assertEqual(second.code, 0, second)
        steps = cli.checkpoint_steps(self.folder / "out")
        self.assertEqual(steps[-1], step + 5)
        os.kill(number, signal.SIGCONT)
        ended = cli.finish(first, ["on alpha"])
        self.assert_fails(ended, "run.lock is gone", "writes nothing more", code=2)
        self.assertEqual(cli.checkpoint_steps(self.folder / "out"), steps)
        for step in steps:
            self.assertEqual(cli.checkpoint_damage(self.folder / f"out/step-{step:08d}", step), "")


if __name__ == "__main__":
    cli.main()
