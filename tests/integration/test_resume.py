"""Resuming gives the run that was never stopped, bit for bit; and what a run's folder holds."""

import itertools
import json
import os
import resource
import shutil
import time

import penstock_cli as cli

HALF = "step-00000010"
WHOLE = "step-00000020"


class SameNumbers(cli.CliTestCase):
    VALUES = {
        "model.dropout": 0.1,
        "train.steps": 20,
        "train.warmup": 4,
        "train.lr": 3e-3,
        "run.save_every": 10,
        "run.log": "none",
    }

    def check(self, values):
        self.write_recipe({**self.VALUES, **values})
        for name in ("straight", "half", "resumed"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        straight = self.train({"run.out": "straight"})
        self.assertEqual(len(straight["losses"]), 20)
        shutil.copytree(self.folder / "straight" / HALF, self.folder / "half" / HALF)
        resumed = self.train({"run.out": "resumed"}, "--resume", f"half/{HALF}")
        self.assertEqual(resumed["first_step"], 10)
        self.assertEqual(resumed["losses"], straight["losses"][10:])
        self.assertEqual(resumed["validation_loss"], straight["validation_loss"])
        for name in ("model.safetensors", "optimizer.safetensors", "state.json", "config.json"):
            self.assert_same_file(f"straight/{WHOLE}/{name}", f"resumed/{WHOLE}/{name}")

    def check_optimizer(self, optimizer):
        for precision, parts in itertools.product(("float32", "bfloat16"), (1, 2)):
            values = {
                "train.optimizer": optimizer,
                "train.precision": precision,
                "plan.micro_batches": parts,
            }
            with self.subTest(**values):
                self.check(values)

    def test_adamw(self):
        self.check_optimizer("adamw")

    def test_sgd(self):
        self.check_optimizer("sgd")

    def test_lamb(self):
        self.check_optimizer("lamb")

    def test_a_head_of_its_own(self):
        self.check({"model.tied": False})

    def test_every_schedule(self):
        for schedule in ("constant", "linear", "wsd", "onecycle"):
            with self.subTest(schedule=schedule):
                self.check({"train.schedule": schedule})

    def test_across_epochs(self):
        # 20 samples to train on: 4 steps of 4 and then some.
        (self.folder / "small.txt").write_text(cli.corpus_text()[:700])
        self.check({"data.path": "small.txt", "data.split": 0})

    def test_token_files(self):
        text = cli.corpus_text().encode()
        (self.folder / "tokens.bin").write_bytes(b"".join(bytes((byte, 0)) for byte in text))
        self.check({"data.path": "tokens.bin", "data.tokenizer": "tokens"})

    def test_other_micro_batches_after_the_resume(self):
        # Not bit for bit, but the same run.
        self.write_recipe(self.VALUES)
        straight = self.train({"run.out": "straight"})["losses"]
        resumed = self.train(
            {"run.out": "resumed", "plan.micro_batches": 4}, "--resume", f"straight/{HALF}"
        )["losses"]
        self.assertEqual(len(resumed), 10)
        for expected, found in zip(straight[10:], resumed):
            self.assertAlmostEqual(found / expected, 1, delta=1e-4)


class RunFolder(cli.CliTestCase):
    def setUp(self):
        super().setUp()
        self.write_recipe({"train.steps": 12, "run.save_every": 3, "train.schedule": "constant"})
        self.out = self.folder / "out"

    def latest(self):
        return os.readlink(self.out / "latest")

    def assert_steps_recorded(self, steps, folder="out"):
        found = [step for step, _ in cli.metric_losses(self.folder / folder)]
        self.assertEqual(found, list(steps))

    def test_keeps_the_newest(self):
        for keep, expected in ((0, [3, 6, 9, 12]), (1, [12]), (2, [9, 12]), (9, [3, 6, 9, 12])):
            with self.subTest(keep=keep):
                self.train({"run.keep": keep})
                self.assertEqual(cli.checkpoint_steps(self.out), expected)
                self.assertEqual(self.latest(), "step-00000012")
                self.assertEqual(cli.temporaries(self.out), [])

    def test_manifest_is_true(self):
        self.train()
        for step in cli.checkpoint_steps(self.out):
            self.assertEqual(cli.checkpoint_damage(self.out / f"step-{step:08d}", step), "")

    def test_latest_points_at_the_newest_of_an_unfinished_run(self):
        self.train({"train.steps": 6})
        self.assertEqual(self.latest(), "step-00000006")
        self.train({}, "--resume", "out")
        self.assertEqual(self.latest(), "step-00000012")

    def test_every_way_to_name_a_checkpoint(self):
        straight = self.train({"run.keep": 0})["losses"]
        for source, first in (
            ("out/step-00000003", 3),
            ("out/step-00000003/", 3),
            (str(self.out / "step-00000006"), 6),
            ("out", 12),
            ("out/", 12),
            ("out/latest", 12),
            ("out/latest/", 12),
        ):
            with self.subTest(source=source):
                summary = self.train({"run.out": "resumed"}, "--resume", source)
                self.assertEqual(summary["first_step"], first)
                self.assertEqual(summary["losses"], straight[first:])

    def test_from_within_the_folders(self):
        straight = self.train({"run.keep": 0})["losses"]
        recipe = str(self.folder / "recipe.toml")
        values = {"data.path": self.folder / "corpus.txt"}
        for cwd, source, out, first in (
            (self.out, "step-00000003", self.folder / "resumed", 3),
            (self.out / "step-00000003", ".", self.folder / "resumed", 3),
            (self.out, "latest", self.folder / "resumed", 12),
            (self.out, ".", self.folder / "resumed", 12),
            (self.out, "step-00000009", ".", 9),
        ):
            with self.subTest(cwd=cwd.name, source=source, out=str(out)):
                summary = self.train(
                    {**values, "run.out": out}, "--resume", source, recipe=recipe, cwd=cwd
                )
                self.assertEqual(summary["first_step"], first)
                self.assertEqual(summary["losses"], straight[first:])

    def test_resume_from_a_copy_of_the_run(self):
        straight = self.train()["losses"]
        self.train({"train.steps": 6, "run.out": "half"})
        shutil.copytree(self.folder / "half", self.folder / "linked", symlinks=True)
        shutil.copytree(self.folder / "half", self.folder / "followed", symlinks=False)
        for source in ("linked", "followed"):
            for out in (f"{source}-resumed", source):
                with self.subTest(source=source, out=out):
                    summary = self.train({"run.out": out}, "--resume", source)
                    self.assertEqual(summary["first_step"], 6)
                    self.assertEqual(summary["losses"], straight[6:])
                    self.assertEqual(cli.temporaries(self.folder / out), [])

    def test_a_replaced_checkpoint_that_was_left_behind_does_not_stop_a_run(self):
        """As if killed between the two renames of a replacement."""
        straight = self.train({"run.keep": 0})["losses"]
        for step, back in ((9, "out/step-00000006"), (12, "out"), (12, "out/step-00000012.old")):
            with self.subTest(step=step, back=back):
                shutil.rmtree(self.folder / "out")
                self.train({"run.keep": 0})
                os.rename(self.out / f"step-{step:08}", self.out / f"step-{step:08}.old")
                first = 6 if back.endswith("6") else 12
                values = {"run.keep": 0, "train.steps": 12 if first < 12 else 14}
                summary = self.train(values, "--resume", back)
                self.assertEqual(summary["first_step"], first)
                self.assertEqual(summary["losses"][: 12 - first], straight[first:])
                # What the run has gone back from is kept, under the name that it had.
                kept = [name for name in cli.temporaries(self.out) if not name.startswith("earlier-")]
                self.assertEqual(kept, [])
                self.assertEqual(list(self.out.glob("*.old")), [])
                self.assertEqual(self.latest(), f"step-{values['train.steps']:08}")

    def test_resume_in_place_from_an_older_checkpoint(self):
        straight = self.train({"run.keep": 0})["losses"]
        summary = self.train({"run.keep": 0}, "--resume", "out/step-00000006")
        self.assertEqual(summary["losses"], straight[6:])
        self.assertEqual(cli.checkpoint_steps(self.out), [3, 6, 9, 12])
        self.assert_steps_recorded(range(1, 13))
        self.assertEqual(cli.temporaries(self.out), [])
        # What it went back from is out of the way, not lost.
        self.assertEqual(cli.checkpoint_steps(self.out / "earlier-001"), [9, 12])
        lines = (self.out / "earlier-001" / "metrics.jsonl").read_text().splitlines()
        self.assertEqual(sorted({json.loads(line)["step"] for line in lines}), list(range(1, 13)))

    def test_going_back_keeps_the_checkpoints_of_the_new_way(self):
        self.train({"run.keep": 0})
        values = {"run.keep": 2, "run.save_every": 2}
        self.train(values, "--resume", "out/step-00000003")
        self.assertEqual(cli.checkpoint_steps(self.out), [10, 12])
        self.assertEqual(self.latest(), "step-00000012")

    def test_changed_data_and_changed_steps_are_not_taken_in_silence(self):
        self.train({"train.schedule": "cosine"})
        corpus = self.folder / "corpus.txt"
        corpus.write_text(corpus.read_text() + "a line more\n")
        values = {"train.schedule": "cosine", "train.steps": 14, "run.out": "longer"}
        result = self.run_program("train", "recipe.toml", "--json", *cli.settings(values), "--resume", "out")
        self.assertEqual(result.code, 0, result)
        self.assertIn("the data has changed", result.stderr)
        self.assertIn("resuming with train.steps = 14", result.stderr)

    def test_going_back_and_stopping_before_a_save_loses_no_metrics(self):
        self.train()
        # Back to step 6, and no step or save after that.
        self.train({"train.steps": 6}, "--resume", "out/step-00000006")
        # Whichever checkpoint this takes, the lines must reach up to it.
        self.train({}, "--resume", "out")
        self.assert_steps_recorded(range(1, 13))

    def test_fresh_start_moves_the_old_run_aside(self):
        first = self.train({"train.seed": 1})["losses"]
        before = cli.snapshot(self.out)
        (self.out / "notes.txt").write_text("the user's own")
        second = self.train({"train.seed": 2, "train.steps": 3})["losses"]
        self.assertNotEqual(first[:3], second)
        self.assertEqual(cli.snapshot(self.out / "earlier-001"), before)
        self.assertEqual(cli.checkpoint_steps(self.out), [3])
        self.assertEqual(self.latest(), "step-00000003")
        self.assertEqual((self.out / "notes.txt").read_text(), "the user's own")
        self.assert_steps_recorded(range(1, 4))
        self.assertEqual(len(list(self.out.glob("events.out.tfevents.*"))), 1)

        result = self.run_program("train", "recipe.toml", "--set", "train.steps=3")
        self.assertEqual(result.code, 0, result)
        self.assertIn("earlier-002", result.stderr)
        self.assertIn("--resume", result.stderr)
        self.assertTrue((self.out / "earlier-002" / "step-00000003").is_dir())
        self.assertEqual(self.train({}, "--resume", "out/earlier-001")["first_step"], 12)

    def test_metrics_after_a_resume(self):
        straight = self.train({"run.out": "straight", "run.validate_every": 4})["losses"]
        self.train({"train.steps": 7, "run.save_every": 5, "run.validate_every": 4})
        # As if killed after step 7, the last checkpoint being of step 5.
        shutil.rmtree(self.out / "step-00000007")
        with open(self.out / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": 8, "lo')
        self.train({"run.validate_every": 4}, "--resume", "out")
        expected = list(enumerate(straight, start=1))
        self.assertEqual(cli.metric_losses(self.out), expected)
        validated = [e["step"] for e in cli.metrics(self.out) if "validation_loss" in e]
        self.assertEqual(validated, [4, 8, 12])

    def test_resuming_a_finished_run(self):
        self.train()
        before = cli.snapshot(self.out)
        summary = self.train({}, "--resume", "out")
        self.assertEqual(summary["losses"], [])
        self.assertEqual(summary["first_step"], 12)
        self.assertIs(summary["interrupted"], False)
        self.assertIsNotNone(summary["validation_loss"])
        after = cli.snapshot(self.out)
        for name in before:
            if name.startswith("step-") or name == "latest":
                self.assertEqual(after[name], before[name], name)
        steps = [(e["step"], sorted(e)) for e in cli.metrics(self.out)]
        repeated = [entry for i, entry in enumerate(steps) if entry in steps[:i]]
        self.assertEqual(repeated, [], "lines of metrics.jsonl stand there twice")

    def test_more_steps_than_planned(self):
        straight = self.train({"run.out": "straight"})["losses"]
        first = self.train({"train.steps": 6})["losses"]
        rest = self.train({"train.steps": 12}, "--resume", "out")["losses"]
        self.assertEqual(first + rest, straight)

    def test_other_settings_are_not_taken_in_silence(self):
        self.train({"train.steps": 3})
        result = self.run_program(
            "train", "recipe.toml", "--resume", "out", "--set", "train.lr=5e-4"
        )
        self.assertEqual(result.code, 0, result)
        self.assertIn("warning: resuming with train.lr = 5e-04", result.stderr)

    def test_leftovers_of_a_killed_run_are_cleared(self):
        self.train({"train.steps": 6})
        dead = 2**22 + 1  # beyond the largest process id
        leftover = self.out / f".tmp-step-00000009-{cli.host_name()}-{dead}"
        leftover.mkdir()
        (leftover / "model.safetensors").write_bytes(b"half")
        os.rename(self.out / "step-00000006", self.out / "step-00000006.old")
        summary = self.train({}, "--resume", "out")
        self.assertEqual(summary["first_step"], 6)
        self.assertEqual(cli.temporaries(self.out), [])

    def test_weights_of_a_checkpoint_start_a_new_run(self):
        self.train()
        summary = self.train({"model.weights": "out", "run.out": "tuned", "train.lr": 0})
        self.assertEqual(summary["first_step"], 0)
        self.assert_same_file(
            "out/step-00000012/model.safetensors", "tuned/step-00000012/model.safetensors"
        )

    def test_weights_of_a_head_of_its_own_start_a_new_run_and_write_text(self):
        untied = {"model.tied": False}
        self.train(untied)
        self.train({**untied, "model.weights": "out", "run.out": "tuned", "train.lr": 0})
        self.assert_same_file(
            "out/step-00000012/model.safetensors", "tuned/step-00000012/model.safetensors"
        )
        config = json.loads((self.out / "latest" / "config.json").read_text())
        self.assertIs(config["tie_word_embeddings"], False)
        result = self.run_program("sample", "out", "--tokens", "5", "--json")
        self.assertEqual(result.code, 0, result)
        self.assertEqual(len(result.json()["tokens"]), 5)

    def test_state_holds_the_counts(self):
        self.train()
        state = json.loads((self.out / "step-00000006" / "state.json").read_text())
        self.assertEqual((state["step"], state["samples_seen"]), (6, 24))
        self.assertEqual(state["optimizer"], {"kind": "adamw", "steps": 6})


class FullDisk(cli.CliTestCase):
    """No file of the program may grow: what is written fails as it does on a full disk."""

    VALUES = {"train.steps": 1500, "run.save_every": 50, "run.save_wait": 1, "run.validate_every": 0}

    def begin(self):
        self.write_recipe(self.VALUES)
        process = cli.start("train", "recipe.toml", "--json", cwd=self.folder)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while not cli.checkpoint_steps(self.folder / "out"):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        return process

    def limit(self, process, bytes_of_a_file):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (bytes_of_a_file, resource.RLIM_INFINITY))

    def test_ends_no_run_that_finds_room_again(self):
        process = self.begin()
        self.limit(process, 1024)
        saved = len(cli.checkpoint_steps(self.folder / "out"))
        time.sleep(1)
        self.assertIsNone(process.poll())
        self.assertLessEqual(len(cli.checkpoint_steps(self.folder / "out")), max(saved, 1) + 1)
        self.limit(process, resource.RLIM_INFINITY)
        result = cli.finish(process)
        self.assertEqual(result.code, 0, result)
        steps = [json.loads(line)["step"] for line in (self.folder / "out" / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual(set(steps), set(range(1, 1501)))
        self.assertEqual(cli.checkpoint_steps(self.folder / "out")[-1], 1500)
        self.assertIn("the run goes on, and saves again in due time", result.stderr)
        self.assertIn("metrics.jsonl: File too large; the run goes on, and writes it when it can", result.stderr)
        self.assertEqual(cli.temporaries(self.folder / "out"), [])

    def test_ends_a_run_that_cannot_save_its_last_step(self):
        process = self.begin()
        self.limit(process, 1024)
        result = cli.finish(process)
        self.assertEqual(result.code, 2, result)
        self.assertIn("tries again for 1 s (run.save_wait)", result.stderr)
        self.assertRegex(result.stderr, r"cannot save step 1500: .*; the last checkpoint is .*step-\d+; make room")
        # And goes on from there.
        self.assertGreater(self.train({}, "--resume", "out")["first_step"], 0)


if __name__ == "__main__":
    cli.main()
