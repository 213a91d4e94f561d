"""Every subcommand, as its help describes it."""

import json
import math
import os
import re
import signal
import struct
import sys
import time
import xml.etree.ElementTree

import penstock_cli as cli

RECIPE_FLAGS = ("--set", "--json")
BARE_FLAGS = ("--ranks", "--forward", "--backward", "--backward-input", "--backward-weight", "--transfer")
PICTURE_FLAGS = ("--svg", "--html", "--trace")
# One for each key of [plan].
PLAN_FLAGS = (
    *("--micro-batches", "--memory", "--recompute", "--costs", "--pipeline", "--data", "--shard"),
    *("--keep-gathered", "--bucket", "--collectives", "--links", "--reduce", "--schedule"),
    *("--chunks", "--cuts", "--flush-every", "--sync-steps", "--anneal-steps"),
)
SUBCOMMANDS = {
    "train": (
        *("RECIPE", *RECIPE_FLAGS, "--resume", "--ranks", *PICTURE_FLAGS, *PLAN_FLAGS, "--plan"),
        "--out",  # of plan
    ),
    "plan": (
        *("RECIPE", *RECIPE_FLAGS, *PLAN_FLAGS, "--slots", "--program", "--ranks", "--out"),
        "--plan",  # of train
    ),
    "profile": ("RECIPE", *RECIPE_FLAGS, "--out", "--costs"),  # the last one of plan
    "simulate": (
        *("RECIPE", *RECIPE_FLAGS, *PLAN_FLAGS, "--slots", "--program"),
        *(*PICTURE_FLAGS, *BARE_FLAGS, "--peak", "--compare"),
    ),
    "check": ("RECIPE", *RECIPE_FLAGS, *PLAN_FLAGS, "--slots", "--program", "--steps"),
    "describe": ("RECIPE", *RECIPE_FLAGS),
    "sample": (
        "CHECKPOINT",
        "--prompt",
        "--tokens",
        "--temperature",
        "--top-k",
        "--seed",
        "--threads",
        "--json",
    ),
    "lr-range": ("RECIPE", *RECIPE_FLAGS, "--from", "--to", "--steps", "--svg"),
    "bench": ("allreduce", "step"),
    "options": ("--markdown",),
}
BENCH_STEP_FLAGS = (
    "--size",
    "--batch",
    "--set",
    "--peers",
    "--python",
    "--peer-script",
    "--window",
    "--warm",
    "--rounds",
    "--kernels",
    "--predict",
    "--json",
)


class CommandTestCase(cli.CliTestCase):
    def output_of(self, *arguments, **options):
        result = self.run_program(*arguments, **options)
        self.assertEqual(result.code, 0, result)
        return result.stdout

    def assert_close(self, found, expected, relative):
        self.assertEqual(len(found), len(expected))
        for step, (a, b) in enumerate(zip(found, expected)):
            self.assertLessEqual(abs(a - b), relative * abs(b), f"step {step}: {a} and {b}")


class Help(CommandTestCase):
    def test_program(self):
        text = self.output_of("--help")
        for name in (*SUBCOMMANDS, "--version", "--quiet", "--help"):
            self.assertIn(name, text)

    def test_every_subcommand_mentions_every_flag(self):
        for command, flags in SUBCOMMANDS.items():
            with self.subTest(command=command):
                text = self.output_of(command, "--help")
                for flag in (*flags, "--help"):
                    self.assertIn(flag, text)
                # And none that this test does not know.
                known = {*flags, "--help", "--version", "--quiet"}
                self.assertLessEqual(set(re.findall(r"(?<!\S)(?:-\w,)?(--[a-z-]+)", text)), known)

    def test_bench_step(self):
        text = self.output_of("bench", "step", "--help")
        for needle in (*BENCH_STEP_FLAGS, "124M", "1558M", "eager", "compile"):
            self.assertIn(needle, text)
        found = set(re.findall(r"(?<!\S)(?:-\w,)?(--[a-z-]+)", text))
        self.assertLessEqual(found, {*BENCH_STEP_FLAGS, "--help", "--version", "--quiet"})

    def test_version(self):
        self.assertRegex(self.output_of("--version"), r"^\d+\.\d+\.\d+\S*\n$")

    def test_options(self):
        text = self.output_of("options")
        for key in cli.TINY:
            self.assertIn(f"  {key} = ", text)
        for needle in ("[model]", "[data]", "[train]", "[plan]", "[run]", '"lamb"', "0 to below 1"):
            self.assertIn(needle, text)
        keys = re.findall(r"^  ([a-z]+\.[a-z0-9_]+) = ", text, re.MULTILINE)
        self.assertEqual(len(keys), len(set(keys)))

    def test_options_as_markdown(self):
        text = self.output_of("options", "--markdown")
        plain = self.output_of("options")
        for key in re.findall(r"^  [a-z]+\.([a-z0-9_]+) = ", plain, re.MULTILINE):
            self.assertIn(f"| `{key}` |", text)


class Bench(CommandTestCase):
    """`penstock bench step` on the CPU, with a peer that takes no time. The figures themselves are
    a GPU's matter."""

    def bench(self, *arguments, **options):
        return self.run_program(
            *("bench", "step", "--size", "124M", "--batch", 1, *cli.settings(cli.SMALL_STEP)),
            *("--window", 0.1, "--warm", 0, "--rounds", 2, *arguments),
            **options,
        )

    def figures(self, result):
        """Of a run that succeeded with figures of ours."""
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.errors(), [], result)
        step = result.json()
        ours = step["ours"]
        self.assertEqual(ours["who"], "penstock")
        self.assertGreater(ours["tokens_per_second"], 0)
        self.assertAlmostEqual(ours["step_s"] * ours["tokens_per_second"], 32, delta=1e-6)
        self.assertGreater(ours["peak_bytes"], 0)
        return step

    def peer(self, body, *arguments, prelude="", peers="eager", **options):
        """Beside a peer of a few lines; `body` sees the words of each command."""
        script = [
            "import json, os, signal, sys, time",
            f"open({str(self.folder / 'peer.pid')!r}, 'w').write(str(os.getpid()))",
            "def answer(value): print(json.dumps(value), flush=True)",
            *prelude.splitlines(),
            "for line in iter(sys.stdin.readline, ''):",
            "    words = line.split()",
            *("    " + row for row in body.splitlines()),
        ]
        (self.folder / "peer.py").write_text("\n".join(script) + "\n")
        return self.bench(
            *("--peers", peers, "--python", sys.executable, "--peer-script", "peer.py"),
            *("--json", *arguments),
            **options,
        )

    def end_peer(self):
        """Whether there was one to end."""
        try:
            os.kill(int((self.folder / "peer.pid").read_text()), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def assert_peer_is_gone(self):
        self.assertFalse(self.end_peer(), "the peer outlives the bench")

    def assert_without_peer(self, result, *needles):
        """Our figures, and one warning in the peer's place."""
        step = self.figures(result)
        self.assertEqual(step["peers"], [])
        self.assertIsNone(step["best_peer"])
        self.assertIsNone(step["ratio"])
        warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
        self.assertEqual(len(warnings), 1, result)
        for needle in ("torch eager", *needles):
            self.assertIn(needle, warnings[0])

    def test_json(self):
        step = self.figures(self.bench("--peers", "none", "--json"))
        self.assertEqual((step["model"], step["batch"]), ("124M", 1))
        self.assertEqual((step["device"], step["limit_bytes"]), ("the CPU", 0))
        self.assertEqual(step["peers"], [])
        self.assertIsNone(step["ratio"])
        self.assertNotIn("predicted", step)
        self.assertNotIn("kernels", step)
        self.assertGreaterEqual(step["reserved_peak_bytes"], step["ours"]["peak_bytes"])
        self.assertTrue(0 < step["program_s"] < 1)
        losses = step["first_losses"]
        self.assertEqual(len(losses), 8)
        self.assertAlmostEqual(losses[0], math.log(100), delta=0.3)
        self.assertLess(losses[7], losses[0])

    def test_first_losses_repeat(self):
        runs = [self.figures(self.bench("--peers", "none", "--json")) for _ in range(2)]
        self.assertEqual(runs[0]["first_losses"], runs[1]["first_losses"])

    def test_text(self):
        result = self.bench("--peers", "none")
        self.assertEqual(result.code, 0, result)
        for needle in ("GPT-2 of 1 layers, width 64, batch 1 x 32, float32", "tokens/s", "MFU", "penstock", "peak"):
            self.assertIn(needle, result.stdout)
        self.assertNotIn("nan", result.stdout)

    def test_prediction(self):
        step = self.figures(self.bench("--peers", "none", "--json", "--predict"))
        predicted = step["predicted"]["peak_bytes"]
        self.assertGreater(step["predicted"]["step_s"], 0)
        self.assertAlmostEqual(step["ours"]["peak_bytes"], predicted, delta=0.02 * predicted)

    def test_limit(self):
        unlimited = self.figures(self.bench("--peers", "none", "--json"))
        limit = 2 * unlimited["ours"]["peak_bytes"]
        limited = self.figures(
            self.bench("--peers", "none", "--json", "--set", f"plan.memory={limit}")
        )
        self.assertEqual(limited["limit_bytes"], limit)
        self.assertLessEqual(limited["ours"]["peak_bytes"], limit)
        self.assertEqual(limited["first_losses"], unlimited["first_losses"])

    def test_batch_of_a_setting(self):
        step = self.bench("--peers", "none", "--json", "--set", "train.batch=3")
        self.assertEqual(step.json()["batch"], 3)

    def test_kernels_are_a_gpus(self):
        step = self.figures(self.bench("--peers", "none", "--json", "--kernels"))
        self.assertNotIn("kernels", step)

    def test_beside_a_peer(self):
        # As gpt2_peer.py answers on the CPU, where it does not know its peak.
        for peak in ("None", "0.5"):
            result = self.peer(
                "if words[0] == 'warm': answer({'steps': 1})\n"
                "else: answer({'tokens_per_second': 1.0, 'seconds': float(words[1]),"
                f" 'steps': 1, 'peak_gib': {peak}}})"
            )
            with self.subTest(peak=peak):
                step = self.figures(result)
                (peer,) = step["peers"]
                self.assertEqual(step["best_peer"], peer["who"])
                self.assertEqual(peer["who"], "torch eager")
                self.assertAlmostEqual(peer["tokens_per_second"], 1)
                self.assertAlmostEqual(
                    step["ratio"], step["ours"]["tokens_per_second"], delta=1e-6 * step["ratio"]
                )
                self.assertEqual(peer["peak_bytes"], 0 if peak == "None" else 2**29)
                self.assert_peer_is_gone()

    def test_what_a_peer_is_told(self):
        self.peer(
            "answer({'tokens_per_second': 1.0, 'seconds': 1.0, 'peak_gib': 1.0})",
            prelude=f"open({str(self.folder / 'told')!r}, 'w').write(' '.join(sys.argv[1:]))",
        )
        told = (self.folder / "told").read_text()
        self.assertEqual(
            told,
            "--layers 1 --width 64 --heads 2 --context 32 --vocabulary 100 --batch 1 "
            "--device cpu --mode eager",
        )

    def test_python_that_is_missing(self):
        (self.folder / "peer.py").write_text("")
        self.assert_without_peer(
            self.bench(
                *("--peers", "eager", "--python", "no/such/python", "--json"),
                *("--peer-script", "peer.py"),
            )
        )

    def test_script_that_is_missing(self):
        self.assert_without_peer(
            self.bench(
                *("--peers", "eager", "--python", sys.executable, "--json"),
                *("--peer-script", "no/such/peer.py"),
            )
        )

    def test_peers_that_end(self):
        for body in ("sys.exit(3)", "if words[0] == 'warm': answer({})\nelse: sys.exit(0)"):
            with self.subTest(body=body):
                self.assert_without_peer(self.peer(body))
                self.assert_peer_is_gone()
        self.assert_without_peer(self.peer("pass", prelude="os.kill(os.getpid(), signal.SIGKILL)"))

    def test_peers_that_answer_rubbish(self):
        for answer in (
            "print('good morning', flush=True)",
            "print('', flush=True)",
            "sys.stdout.buffer.write(bytes(range(128, 256)) + b'\\n'); sys.stdout.flush()",
            "answer([1, 2])",
            "answer(None)",
            "answer({})",
            "answer({'seconds': 1.0})",
            "answer({'tokens_per_second': 'fast', 'seconds': 1.0, 'peak_gib': 1.0})",
            "answer({'tokens_per_second': 0.0, 'seconds': 0.0, 'peak_gib': 0.0})",
            "answer({'tokens_per_second': -1.0, 'seconds': 1.0, 'peak_gib': 0.0})",
            "answer({'error': 5})",
            "answer({'error': None})",
        ):
            with self.subTest(answer=answer):
                self.assert_without_peer(
                    self.peer(f"if words[0] == 'warm': answer({{'steps': 1}})\nelse: {answer}")
                )
                self.assert_peer_is_gone()

    def test_peer_that_explains_itself(self):
        self.assert_without_peer(
            self.peer("answer({'error': 'RuntimeError: no luck'})"), "RuntimeError: no luck"
        )

    def test_peer_that_does_not_go(self):
        """One that heeds no request to end is ended."""
        self.addCleanup(self.end_peer)
        result = self.peer(
            "answer('rubbish')\ntime.sleep(1000)",
            prelude="signal.signal(signal.SIGTERM, signal.SIG_IGN)",
            timeout=45,
        )
        self.assert_without_peer(result)
        self.assert_peer_is_gone()

    def test_the_second_peer_runs_though_the_first_does_not(self):
        result = self.peer(
            "if sys.argv[-1] == 'compile': sys.exit(1)\n"
            "answer({'tokens_per_second': 2.0, 'seconds': 1.0, 'peak_gib': 1.0})",
            peers="compile,eager",
        )
        self.assertEqual([peer["who"] for peer in self.figures(result)["peers"]], ["torch eager"])

    def interrupt(self, number, *arguments):
        every = ("bench", "step", "--batch", "1", *cli.settings(cli.SMALL_STEP), *arguments)
        process = cli.start(*every, cwd=self.folder)
        time.sleep(1.5)
        self.assertIsNone(process.poll(), "the bench was too short for this test")
        process.send_signal(number)
        return cli.finish(process, every, timeout=30)

    def test_interrupt(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for arguments in (("--warm", "100"), ("--warm", "0", "--window", "100")):
                with self.subTest(signal=number, arguments=arguments):
                    result = self.interrupt(number, "--peers", "none", "--json", *arguments)
                    self.assertIn(result.code, (0, 1), result)
                    self.assertNotIn("internal error", result.stderr)
                    self.assertLessEqual(len(result.errors()), 1, result)


class Describe(CommandTestCase):
    def describe(self, *arguments):
        return self.output_of("describe", "recipes/demo.toml", *arguments, cwd=cli.REPOSITORY)

    def test_demo_as_json(self):
        chain = json.loads(self.describe("--json"))
        layers = chain["layers"]
        self.assertEqual(chain["parameters"], 1_853_568)
        self.assertEqual(sum(layer["parameters"] for layer in layers), chain["parameters"])
        self.assertEqual(sum(layer["kept_bytes"] for layer in layers), chain["kept_bytes"])
        for layer in layers:
            self.assertEqual(layer["parameter_bytes"], 4 * layer["parameters"])
        self.assertEqual(len(layers), 1 + 2 * 4 + 1)
        self.assertEqual(layers[0]["name"], "embedding")
        self.assertEqual(layers[0]["output"], "16 x 128 x 192")

    def test_demo_as_text(self):
        text = self.describe()
        for layer in json.loads(self.describe("--json"))["layers"]:
            row = [line for line in text.splitlines() if line.startswith(layer["name"])]
            self.assertEqual(len(row), 1, layer["name"])
            self.assertIn(f"{layer['parameters']:,}", row[0])
        self.assertIn("1,853,568", text)

    def test_micro_batches_shrink_what_is_kept(self):
        whole = json.loads(self.describe("--json"))
        parts = json.loads(self.describe("--json", "--set", "plan.micro_batches=4"))
        self.assertEqual(parts["parameters"], whole["parameters"])
        self.assertEqual(parts["layers"][0]["output"], "4 x 128 x 192")
        self.assertEqual(parts["kept_bytes"] * 4, whole["kept_bytes"])

    def test_needs_no_data_and_writes_nothing(self):
        before = cli.snapshot(self.folder)
        self.output_of("describe", "recipe.toml", "--set", "data.path=nowhere")
        self.assertEqual(cli.snapshot(self.folder), before)
        self.assertFalse((self.folder / "out").exists())

    def test_counts_the_parameters_that_training_counts(self):
        described = json.loads(self.output_of("describe", "recipe.toml", "--json"))
        self.assertEqual(described["parameters"], self.train()["parameters"])


class Train(CommandTestCase):
    def test_json(self):
        output = self.output_of("train", "recipe.toml", "--json")
        summary = json.loads(output)  # fails on anything beside the one object
        self.assertEqual(output.count("\n"), 1)
        self.assertEqual(summary["steps"], 6)
        self.assertEqual(len(summary["losses"]), 6)
        self.assertLess(summary["losses"][-1], summary["losses"][0])
        self.assertTrue(4 < summary["validation_loss"] < 6)
        self.assertGreater(summary["tokens_per_second"], 0)
        self.assertGreater(summary["peak_bytes"], 4 * 4 * summary["parameters"])
        self.assertEqual(summary["parameters"], 34_688)
        self.assertIs(summary["interrupted"], False)
        self.assertEqual(summary["checkpoint"], "out/step-00000006")

    def test_text(self):
        result = self.run_program("train", "recipe.toml")
        self.assertEqual(result.code, 0, result)
        for needle in ("loss", "validation loss", "tokens per second", "out/step-00000006"):
            self.assertIn(needle, result.stdout)
        self.assertIn("train 6/6", result.stderr)

    def test_quiet(self):
        for arguments in (["-q", "train", "recipe.toml"], ["train", "recipe.toml", "--quiet"]):
            result = self.run_program(*arguments, *cli.settings({"run.out": f"out{arguments[0]}"}))
            self.assertEqual((result.code, result.stderr), (0, ""))

    def test_same_recipe_same_numbers(self):
        first = self.train({"model.dropout": 0.2})
        second = self.train({"model.dropout": 0.2, "run.out": "again"})
        other = self.train({"model.dropout": 0.2, "run.out": "other", "train.seed": 2})
        self.assertEqual(first["losses"], second["losses"])
        self.assert_same_file(
            "out/step-00000006/model.safetensors", "again/step-00000006/model.safetensors"
        )
        self.assertNotEqual(first["losses"], other["losses"])

    def test_set_overrides_the_recipe_and_the_last_one_wins(self):
        summary = self.train({}, "--set", "train.steps=2", "--set", "train.steps=3")
        self.assertEqual(summary["steps"], 3)
        stored = (self.folder / "out" / "step-00000003" / "recipe.toml").read_text()
        self.assertIn("steps = 3\n", stored)

    def test_out_is_named_after_the_recipe(self):
        self.write_recipe({"run.out": "", "train.steps": 1}, name="small.toml")
        self.assertEqual(self.train(recipe="small.toml")["out"], "runs/small")
        self.assertTrue((self.folder / "runs" / "small" / "step-00000001").is_dir())

    def test_stored_recipe_repeats_the_run(self):
        first = self.train({"train.lr": 7.3e-4, "model.dropout": 0.1, "train.schedule": "wsd"})
        recipe = "out/step-00000006/recipe.toml"
        again = self.train({"run.out": "again"}, recipe=recipe)
        self.assertEqual(again["losses"], first["losses"])

    def test_no_steps(self):
        summary = self.train({"train.steps": 0})
        self.assertEqual((summary["steps"], summary["losses"]), (0, []))

    def test_without_validation(self):
        self.assertIsNone(self.train({"data.split": 0})["validation_loss"])

    def test_sample_after_training(self):
        summary = self.train({"run.sample_tokens": 20, "run.sample_prompt": "line "})
        self.assertTrue(summary["sample"].startswith("line "))

    def test_dropout_does_not_depend_on_how_the_batch_is_cut(self):
        losses = [
            self.train(
                {"model.dropout": 0.2, "plan.micro_batches": parts, "run.out": f"out{parts}"}
            )["losses"]
            for parts in (1, 2, 4)
        ]
        self.assert_close(losses[1], losses[0], 1e-5)
        self.assert_close(losses[2], losses[0], 1e-5)
        plain = self.train({"model.dropout": 0, "run.out": "plain"})["losses"]
        self.assertGreater(abs(plain[0] - losses[0][0]), 1e-4, "dropout does nothing")

    def test_micro_batches_take_less_memory(self):
        values = {"train.batch": 32, "train.steps": 2}
        whole = self.train({**values, "run.out": "whole"})["peak_bytes"]
        parts = self.train({**values, "run.out": "parts", "plan.micro_batches": 8})["peak_bytes"]
        self.assertLess(parts, 0.6 * whole)

    def test_threads_do_not_change_the_numbers(self):
        values = {"model.dropout": 0.2, "train.batch": 8}
        one = self.train({**values, "run.threads": 1, "run.out": "one"})["losses"]
        two = self.train({**values, "run.threads": 2, "run.out": "two"})["losses"]
        self.assert_close(two, one, 1e-5)

    def test_bfloat16_is_near_float32(self):
        full = self.train({"run.out": "full"})["losses"]
        half = self.train({"run.out": "half", "train.precision": "bfloat16"})["losses"]
        self.assert_close(half, full, 0.01)
        self.assertNotEqual(half, full)


class Metrics(CommandTestCase):
    def test_jsonl_has_the_losses(self):
        summary = self.train({"run.validate_every": 2})
        expected = list(enumerate(summary["losses"], start=1))
        self.assertEqual(cli.metric_losses(self.folder / "out"), expected)
        validated = [e for e in cli.metrics(self.folder / "out") if "validation_loss" in e]
        self.assertEqual([entry["step"] for entry in validated], [2, 4, 6])
        self.assertEqual(validated[-1]["validation_loss"], summary["validation_loss"])
        for entry in cli.metrics(self.folder / "out"):
            if "loss" in entry:
                self.assertGreater(entry["lr"], 0)
                self.assertGreater(entry["gradient_norm"], 0)
                self.assertGreater(entry["tokens_per_second"], 0)

    def read_records(self, path):
        """The records of a TensorBoard event file, checksums verified."""

        def require_checksum(bytes_, stored):
            crc = cli.crc32c(bytes_)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            self.assertEqual(masked, stored, "checksum of an event")

        data = path.read_bytes()
        records = []
        while data:
            length, length_crc = struct.unpack_from("<QI", data)
            require_checksum(data[:8], length_crc)
            record = data[12 : 12 + length]
            require_checksum(record, struct.unpack_from("<I", data, 12 + length)[0])
            records.append(record)
            data = data[16 + length :]
        return records

    def test_tensorboard_has_the_losses(self):
        losses = self.train()["losses"]
        files = list((self.folder / "out").glob("events.out.tfevents.*"))
        self.assertEqual(len(files), 1)
        records = self.read_records(files[0])
        self.assertIn(b"brain.Event:2", records[0])
        # A scalar: tag (field 1), then simple_value (field 2, a float).
        found = []
        for record in records:
            at = record.find(b"\x0a\x04loss\x15")
            if at >= 0:
                found.append(struct.unpack_from("<f", record, at + 7)[0])
        self.assert_close(found, losses, 1e-6)

    def test_log_chooses_the_files(self):
        for log, jsonl, events in (
            ("none", False, False),
            ("jsonl", True, False),
            ("tensorboard", False, True),
        ):
            with self.subTest(log=log):
                out = self.folder / f"out-{log}"
                self.train({"run.log": log, "run.out": out, "train.steps": 1})
                self.assertEqual((out / "metrics.jsonl").exists(), jsonl)
                self.assertEqual(any(out.glob("events.*")), events)


class LrRange(CommandTestCase):
    def test_json_has_the_curve(self):
        curve = json.loads(
            self.output_of("lr-range", "recipe.toml", "--json", "--steps", "20", "--to", "0.1")
        )
        rates = curve["learning_rates"]
        self.assertEqual(len(rates), 20)
        self.assertEqual(len(curve["losses"]), 20)
        self.assertEqual(len(curve["smoothed"]), 20)
        self.assertAlmostEqual(rates[0] / 1e-6, 1)
        self.assertAlmostEqual(rates[-1] / 0.1, 1)
        self.assertEqual(rates, sorted(rates))
        self.assertTrue(1e-6 < curve["suggested"] < 0.1)
        self.assertFalse((self.folder / "out").exists(), "nothing is to be saved")

    def test_svg(self):
        text = self.output_of("lr-range", "recipe.toml", "--steps", "20", "--svg", "curve.svg")
        self.assertIn("train.lr = ", text)
        self.assertIn("curve.svg", text)
        root = xml.etree.ElementTree.parse(self.folder / "curve.svg").getroot()
        self.assertTrue(root.tag.endswith("svg"))
        self.assertEqual(cli.temporaries(self.folder), [])

    def test_ends_when_the_loss_explodes(self):
        curve = json.loads(
            self.output_of(
                "lr-range",
                "recipe.toml",
                "--json",
                "--to",
                "1e8",
                *cli.settings({"train.optimizer": "sgd", "train.clip": 0}),
            )
        )
        self.assertTrue(2 < len(curve["losses"]) < 100)


class Sample(CommandTestCase):
    def setUp(self):
        super().setUp()
        self.train({"train.steps": 2})

    def sample(self, *arguments):
        return json.loads(self.output_of("sample", "out", "--json", "--threads", "1", *arguments))

    def test_is_decided_by_the_seed(self):
        first = self.sample("--seed", "7", "--tokens", "40", "--prompt", "line")
        self.assertEqual(first["prompt"], "line")
        again = self.sample("--seed", "7", "--tokens", "40", "--prompt", "line")
        self.assertEqual(first, again)
        self.assertNotEqual(first, self.sample("--seed", "8", "--tokens", "40", "--prompt", "line"))

    def test_temperature_0_needs_no_seed(self):
        first = self.sample("--temperature", "0", "--tokens", "40", "--seed", "1")
        self.assertEqual(first, self.sample("--temperature", "0", "--tokens", "40", "--seed", "2"))
        self.assertEqual(first, self.sample("--top-k", "1", "--tokens", "40", "--seed", "3"))

    def test_no_tokens(self):
        self.assertEqual(self.sample("--tokens", "0")["text"], "")

    def test_more_tokens_than_the_context(self):
        tokens = self.sample("--temperature", "0", "--tokens", "70")["tokens"]
        self.assertEqual(len(tokens), 70)
        self.assertTrue(all(0 <= token < 256 for token in tokens))

    def test_text(self):
        text = self.output_of("sample", "out", "--prompt", "abc", "--tokens", "5")
        self.assertTrue(text.startswith("abc"))
        self.assertTrue(text.endswith("\n"))

    def test_every_way_to_name_a_checkpoint(self):
        expected = self.sample("--tokens", "20")
        for name in ("out/step-00000002", "out/step-00000002/", "out/latest", "out/"):
            found = json.loads(self.output_of("sample", name, "--json", "--tokens", "20"))
            self.assertEqual(found, expected)


del CommandTestCase

if __name__ == "__main__":
    cli.main()
