"""Ctrl-C, SIGTERM, SIGUSR1, SIGHUP and run.hours: a checkpoint, an exit code of 0, and no trace in the numbers."""

import json
import re
import shlex
import signal
import subprocess
import time

import penstock_cli as cli


class Interrupt(cli.CliTestCase):
    STEPS = 400  # about a second

    def setUp(self):
        super().setUp()
        self.write_recipe({"model.dropout": 0.1, "train.steps": self.STEPS})

    def interrupt(self, number, arguments, is_time):
        """Starts the program and sends the signal as soon as is_time()."""
        process = self.process = cli.start(*arguments, cwd=self.folder)
        deadline = time.monotonic() + cli.TIMEOUT_S
        while not is_time() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        self.assertIsNone(process.poll(), "ended before the signal")
        status = self.folder / "out/status.json"
        self.seen_status = json.loads(status.read_text()) if status.exists() else None
        process.send_signal(number)
        return cli.finish(process, arguments)

    def has_steps(self, count, folder="out"):
        def is_time():
            try:
                return (self.folder / folder / "metrics.jsonl").read_text().count("\n") >= count
            except FileNotFoundError:
                return False

        return is_time

    def continue_as_told(self, result):
        """Runs the command that the program said would continue."""
        told = [line for line in result.stderr.splitlines() if "continue with: " in line]
        self.assertEqual(len(told), 1, result)
        try:
            name, *arguments = shlex.split(told[0].split("continue with: ")[1])
        except ValueError as error:
            self.fail(f"no shell takes this, {error}: {told[0]}")
        self.assertEqual(name, cli.PROGRAM, result)
        return self.run_program(*arguments, "--json")

    def check_signal(self, number):
        straight = self.train({"run.out": "straight"})["losses"]
        arguments = ["train", "recipe.toml", "--json"]
        stopped = self.interrupt(number, arguments, self.has_steps(40))
        self.assertEqual(stopped.code, 0, stopped)
        summary = stopped.json()
        done = len(summary["losses"])
        self.assertIs(summary["interrupted"], True)
        self.assertTrue(40 <= done < self.STEPS, f"stopped after {done} steps")
        saved = f"out/step-{done:08d}"
        self.assertEqual(summary["checkpoint"], saved)
        self.assertIn(f"saved {saved}\n", stopped.stderr)
        self.assertIn(f"stopped by {signal.Signals(number).name}", stopped.stderr)
        self.assertEqual(stopped.errors(), [])
        self.assertEqual(cli.checkpoint_damage(self.folder / saved, done), "")
        self.assertEqual(cli.temporaries(self.folder), [])

        resumed = self.continue_as_told(stopped)
        self.assertEqual(resumed.code, 0, resumed)
        rest = resumed.json()
        self.assertIs(rest["interrupted"], False)
        self.assertEqual(rest["first_step"], done)
        self.assertEqual(summary["losses"] + rest["losses"], straight)
        for name in ("model.safetensors", "optimizer.safetensors"):
            last = f"step-{self.STEPS:08d}"
            self.assert_same_file(f"out/{last}/{name}", f"straight/{last}/{name}")
        expected = list(enumerate(straight, start=1))
        self.assertEqual(cli.metric_losses(self.folder / "out"), expected)

    def test_sigint(self):
        self.check_signal(signal.SIGINT)

    def test_sigterm(self):
        self.check_signal(signal.SIGTERM)

    def test_sigusr1(self):
        self.check_signal(signal.SIGUSR1)

    def test_sighup(self):
        self.check_signal(signal.SIGHUP)

    def wait_for_steps(self, process, count):
        deadline = time.monotonic() + cli.TIMEOUT_S
        while not self.has_steps(count)() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        self.assertIsNone(process.poll(), "ended by itself")

    def test_a_warning_and_then_the_end(self):
        """A batch system warns by SIGUSR1, and sends SIGTERM while the run still saves."""
        process = cli.start("train", "recipe.toml", "--json", "--set", "train.steps=1000000", cwd=self.folder)
        self.wait_for_steps(process, 20)
        process.send_signal(signal.SIGUSR1)
        for _ in range(5):
            time.sleep(0.01)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        stopped = cli.finish(process, [])
        self.assertEqual(stopped.code, 0, stopped)
        self.assertEqual(stopped.json()["stop_reason"], "SIGUSR1")
        self.assertEqual(cli.checkpoint_steps(self.folder / "out"), [len(stopped.json()["losses"])])

    def test_nohup_is_meant(self):
        process = subprocess.Popen(
            ["nohup", cli.PROGRAM, "train", "recipe.toml", "--json", "--set", "train.steps=1000000"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.wait_for_steps(process, 20)
        process.send_signal(signal.SIGHUP)
        self.wait_for_steps(process, len(cli.metrics(self.folder / "out")) + 200)
        process.send_signal(signal.SIGTERM)
        stopped = cli.finish(process, [])
        self.assertEqual(stopped.json()["stop_reason"], "SIGTERM", stopped)

    def status(self, folder="out"):
        return json.loads((self.folder / folder / "status.json").read_text())

    def test_status(self):
        summary = self.train({"train.steps": 20, "run.validate_every": 10})
        status = self.status()
        self.assertEqual(status["state"], "finished", status)
        self.assertEqual((status["reason"], status["step"], status["steps"]), ("", 20, 20))
        self.assertEqual(status["loss"], summary["losses"][-1])
        self.assertEqual(status["validation_loss"], summary["validation_loss"])
        self.assertEqual(status["peak_bytes"], summary["peak_bytes"])
        self.assertGreater(status["peak_rss_bytes"], status["peak_bytes"])
        self.assertGreaterEqual(status["peak_rss_bytes"], summary["peak_rss_bytes"])  # written later
        self.assertEqual(status["checkpoint"], "out/step-00000020")

        def is_under_way():
            status = self.status()
            return status["pid"] == self.process.pid and status["step"] > 20

        stopped = self.interrupt(
            signal.SIGTERM, ["train", "recipe.toml", "--json", "--resume", "out", "--set", "train.steps=1000000"],
            is_under_way)
        running = self.seen_status
        self.assertEqual((running["state"], running["pid"]), ("running", self.process.pid), running)
        self.assertTrue(20 <= running["step"] <= 20 + len(stopped.json()["losses"]), running)
        status = self.status()
        self.assertEqual((status["state"], status["reason"]), ("interrupted", "SIGTERM"), status)

        result = self.run_program("train", "recipe.toml", "--set", "train.lr=1e30", "--set", "train.clip=0",
                                  "--set", "train.warmup=0")
        self.assertNotEqual(result.code, 0, result)
        status = self.status()
        self.assertEqual(status["state"], "failed", status)
        self.assertIn(status["reason"], result.stderr)

    def test_hours(self):
        steps = 3000  # about 7 s
        straight = self.train({"run.out": "straight", "train.steps": steps})["losses"]
        losses, stops = [], 0
        for round_number in range(100):
            values = {"run.hours": 2 / 3600, "train.steps": steps}
            began = time.monotonic()
            result = self.run_program("train", "recipe.toml", "--json", "--resume", "auto",
                                      *(word for key, value in values.items() for word in ("--set", f"{key}={value}")))
            self.assertEqual(result.code, 0, result)
            self.assertLess(time.monotonic() - began, 60)
            summary = result.json()
            self.assertEqual(summary["first_step"], len(losses))
            losses += summary["losses"]
            status = self.status()
            if not summary["interrupted"]:
                break
            stops += 1
            self.assertEqual(summary["stop_reason"], "run.hours")
            self.assertEqual((status["state"], status["reason"]), ("interrupted", "run.hours"))
            if summary["losses"]:
                self.assertEqual(cli.checkpoint_damage(self.folder / summary["checkpoint"], len(losses)), "")
        self.assertGreater(stops, 0)
        self.assertEqual(status["state"], "finished")
        self.assertEqual(losses, straight)
        # Once more: nothing is left to do.
        again = self.train({"train.steps": steps}, "--resume", "auto")
        self.assertEqual(again["losses"], [])

    def test_save_minutes(self):
        values = {"run.save_minutes": 0.5 / 60, "run.save_every": 0, "run.keep": 0, "train.steps": 1000000}
        stopped = self.interrupt(
            signal.SIGINT,
            ["train", "recipe.toml", "--json",
             *(word for key, value in values.items() for word in ("--set", f"{key}={value}"))],
            lambda: len(cli.checkpoint_steps(self.folder / "out")) >= 3)
        self.assertEqual(stopped.code, 0, stopped)
        saved = cli.checkpoint_steps(self.folder / "out")
        self.assertGreaterEqual(len(saved), 3)
        self.train({"run.out": "other", "run.save_minutes": 0, "run.keep": 0, "train.steps": 500})
        self.assertEqual(cli.checkpoint_steps(self.folder / "other"), [500])

    def test_a_step_is_saved_once(self):
        """Also where the signal comes right after the save of the last step."""
        arguments = ["train", "recipe.toml", "--json", "--set", "run.save_every=1"]
        stopped = self.interrupt(signal.SIGINT, arguments, self.has_steps(10))
        self.assertEqual(stopped.code, 0, stopped)
        saved = re.findall(r"^saved out/step-(\d+)$", stopped.stderr, re.MULTILINE)
        self.assertEqual(len(saved), len(set(saved)), stopped)
        self.assertEqual(int(saved[-1]), len(stopped.json()["losses"]))

    def test_three_interruptions_in_a_row(self):
        straight = self.train({"run.out": "straight"})["losses"]
        losses = []
        resume = []
        for round_number in range(1, 4):
            stopped = self.interrupt(
                signal.SIGINT,
                ["train", "recipe.toml", "--json", *resume],
                self.has_steps(60 * round_number),
            )
            self.assertEqual(stopped.code, 0, stopped)
            losses += stopped.json()["losses"]
            resume = ["--resume", "out"]
        losses += self.train({}, "--resume", "out")["losses"]
        self.assertEqual(losses, straight)

    def test_command_to_continue_carries_the_settings(self):
        arguments = ["train", "recipe.toml", "--json", "--set", "run.out=elsewhere"]
        arguments += ["--set", "train.lr=5e-4"]
        stopped = self.interrupt(signal.SIGINT, arguments, self.has_steps(20, "elsewhere"))
        self.assertEqual(stopped.code, 0, stopped)
        resumed = self.continue_as_told(stopped)
        self.assertEqual(resumed.code, 0, resumed)
        warnings = [line for line in resumed.stderr.splitlines() if line.startswith("warning")]
        self.assertEqual(warnings, [], "it continues with other settings")
        summary = resumed.json()
        self.assertEqual(summary["first_step"], len(stopped.json()["losses"]))
        self.assertEqual(summary["out"], "elsewhere")

    def test_command_to_continue_quotes_the_names(self):
        values = {"train.steps": self.STEPS, "run.out": "my run's folder"}
        self.write_recipe(values, name="my recipe.toml")
        stopped = self.interrupt(
            signal.SIGINT,
            ["train", "my recipe.toml", "--json"],
            self.has_steps(20, values["run.out"]),
        )
        resumed = self.continue_as_told(stopped)
        self.assertEqual(resumed.code, 0, resumed)
        self.assertEqual(resumed.json()["first_step"], len(stopped.json()["losses"]))

    def test_before_the_first_step_nothing_is_promised(self):
        # A model that takes a moment to build, and a signal as soon as the program listens for it.
        self.write_recipe({"model.width": 1024, "model.layers": 6, "train.steps": 2})

        def listens():
            with open(f"/proc/{self.process.pid}/status") as status:
                caught = next(line for line in status if line.startswith("SigCgt:"))
            return int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1

        stopped = self.interrupt(signal.SIGINT, ["train", "recipe.toml", "--json"], listens)
        self.assertEqual(stopped.code, 0, stopped)
        summary = stopped.json()
        self.assertIs(summary["interrupted"], True)
        self.assertEqual(summary["losses"], [], "the signal came too late for this test")
        self.assertEqual(cli.checkpoint_steps(self.folder / "out"), [])
        self.assertNotIn("--resume out", stopped.stderr, "there is nothing to resume from")

    def test_sampling_stops(self):
        self.train({"train.steps": 2})
        # The likeliest token is never the end of the document.
        arguments = ["sample", "out", "--tokens", "10000000", "--temperature", "0", "--json"]
        started = time.monotonic()
        stopped = self.interrupt(
            signal.SIGINT, arguments, lambda: time.monotonic() - started > 1.5
        )
        self.assertEqual(stopped.code, 0, stopped)
        self.assertIn("text", stopped.json())


if __name__ == "__main__":
    cli.main()
