"""Whatever the user gets wrong: one clear line, the right exit code, nothing half-written."""

import os
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time

import penstock_cli as cli


class BadInputTestCase(cli.CliTestCase):
    def assert_refused(self, arguments, *needles, code=2, **options):
        """Fails as assert_fails() says, and leaves every file as it was."""
        before = cli.snapshot(self.folder)
        result = self.run_program(*arguments, **options)
        line = self.assert_fails(result, *needles, code=code)
        self.assertEqual(cli.snapshot(self.folder), before, "files changed")
        return line

    def assert_train_refused(self, values, *needles, flags=()):
        return self.assert_refused(
            ["train", "recipe.toml", "--json", *cli.settings(values), *flags], *needles
        )


class Recipe(BadInputTestCase):
    def assert_recipe_refused(self, text, *needles):
        (self.folder / "recipe.toml").write_text(cli.recipe_text(cli.TINY) + text)
        for command in ("train", "describe", "lr-range"):
            self.assert_refused([command, "recipe.toml"], "recipe.toml", *needles)

    def test_unknown_key_suggests_the_nearest(self):
        (self.folder / "recipe.toml").write_text("[train]\nstpes = 5\n")
        self.assert_refused(
            ["train", "recipe.toml"], "recipe.toml:2", "train.stpes", "did you mean train.steps?"
        )

    def test_unknown_key_in_set_suggests_the_nearest(self):
        self.assert_train_refused({"train.stpes": 5}, "--set", "train.stpes", "train.steps?")

    def test_key_of_another_section_is_suggested(self):
        self.assert_train_refused({"train.dropout": 0.1}, "train.dropout", "model.dropout?")

    def test_unknown_section(self):
        self.assert_recipe_refused("\n[trian]\nsteps = 5\n", "[trian]", "[train]", "model, data")

    def test_key_outside_of_a_section(self):
        (self.folder / "recipe.toml").write_text("steps = 5\n")
        self.assert_refused(["train", "recipe.toml"], "recipe.toml:1", "steps", "[train]")

    def test_wrong_type_in_the_file(self):
        self.assert_recipe_refused(
            '\n[plan]\nmicro_batches = "two"\n', "plan.micro_batches", '"two"', "an integer"
        )

    def test_wrong_type_in_set(self):
        self.assert_train_refused({"train.steps": "many"}, "--set", "train.steps", "an integer")
        self.assert_train_refused({"train.steps": 1.5}, "--set", "train.steps", "an integer")
        self.assert_train_refused({"train.nesterov": 1}, "--set", "train.nesterov", "true or false")

    def test_value_out_of_range(self):
        self.assert_train_refused({"model.dropout": 1}, "model.dropout", "0 to below 1")
        self.assert_train_refused({"model.layers": 0}, "model.layers", "1 to ")
        self.assert_train_refused({"train.optimizer": "adam"}, "train.optimizer", '"adamw"')
        self.assert_train_refused({"train.lr": "nan"}, "train.lr")

    def test_set_without_a_value(self):
        self.assert_refused(
            ["train", "recipe.toml", "--set", "train.steps"], "train.steps", "--set train.steps=50"
        )

    def test_not_toml(self):
        self.assert_recipe_refused("\n[run\n", "not valid TOML")

    def test_missing_recipe(self):
        self.assert_refused(["train", "no/such.toml"], "no/such.toml", "does not exist", "recipes/")

    def test_recipe_is_a_folder(self):
        (self.folder / "folder").mkdir()
        self.assert_refused(["train", "folder"], "folder", "not a regular file")

    def test_width_not_divisible_by_heads(self):
        self.assert_train_refused(
            {"model.heads": 5}, "model.width = 32", "model.heads = 5", "try model.width = 35"
        )

    def test_batch_not_divisible_by_micro_batches(self):
        self.assert_train_refused(
            {"plan.micro_batches": 3},
            "train.batch = 4",
            "plan.micro_batches = 3",
            "try plan.micro_batches = 2",
        )

    def test_unwritable_out(self):
        (self.folder / "file").write_text("in the way")
        self.assert_train_refused({"run.out": "file/run"}, "run.out", "file/run", "--set run.out=")
        self.assert_train_refused({"run.out": "file"}, "run.out", "file", "--set run.out=")

    def test_absurd_sizes_are_the_users_matter(self):
        result = self.run_program("train", "recipe.toml", *cli.settings({"model.width": 1000000, "model.layers": 1000}))
        self.assert_fails(result, "does not fit", "GiB", "the machine's memory", code=1)
        self.assert_fails(
            self.run_program(
                "train", "recipe.toml", *cli.settings({"train.batch": 2**63 - 1, "run.out": "big"})
            ),
            "train.batch",
        )

    def test_empty_sample_prompt_begins_a_document(self):
        summary = self.train({"run.sample_tokens": 5, "run.sample_prompt": ""})
        self.assertTrue(summary["sample"])


class Data(BadInputTestCase):
    def write_tokens(self, tokens):
        (self.folder / "tokens.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))

    def test_missing_path(self):
        self.assert_train_refused({"data.path": "nowhere.txt"}, "data.path", "nowhere.txt")
        self.assert_train_refused({"data.path": ""}, "data.path", "not set")

    def test_empty_corpus(self):
        (self.folder / "empty.txt").write_text("")
        self.assert_train_refused({"data.path": "empty.txt"}, "data.path", "empty.txt", "is empty")
        (self.folder / "folder").mkdir()
        self.assert_train_refused({"data.path": "folder"}, "data.path", '"folder"', "no text files")

    def test_context_longer_than_the_corpus(self):
        self.assert_train_refused({"model.context": 100000}, "model.context = 100000", "data.path")

    def test_too_little_held_out(self):
        self.assert_train_refused({"data.split": 0.0005}, "data.split", "set data.split = 0")

    def test_token_beyond_the_vocabulary(self):
        self.write_tokens([i % 256 for i in range(2000)] + [256] + [1] * 100)
        self.assert_train_refused(
            {"data.path": "tokens.bin", "data.tokenizer": "tokens"},
            "tokens.bin",
            "token 256 at position 2000",
            "model.vocabulary",
            "257 or more",
        )

    def test_token_file_of_odd_size(self):
        (self.folder / "tokens.bin").write_bytes(b"\x01\x00" * 2000 + b"\x01")
        self.assert_train_refused(
            {"data.path": "tokens.bin", "data.tokenizer": "tokens"},
            "tokens.bin",
            "4001 bytes",
            "multiple of 2",
        )

    def test_text_as_tokens_and_tokens_as_text(self):
        self.write_tokens([1] * 2000)
        self.assert_train_refused({"data.tokenizer": "tokens"}, "corpus.txt", '"bytes"')
        self.assert_train_refused({"data.path": "tokens.bin"}, "tokens.bin", '"tokens"')


class CommandLine(BadInputTestCase):
    def test_unknown_subcommand_is_named(self):
        self.assert_refused(["trian"], "trian", "--help")

    def test_no_subcommand(self):
        self.assert_refused([], "no command", "--help")

    def test_missing_recipe_argument(self):
        for command in ("train", "describe", "lr-range"):
            self.assert_refused([command], "RECIPE", "--help")
        self.assert_refused(["sample"], "CHECKPOINT", "--help")

    def test_unknown_flag(self):
        self.assert_refused(["train", "recipe.toml", "--stpes", "5"], "--stpes", "--set train.steps=VALUE", "--help")
        self.assert_refused(["train", "recipe.toml", "--steps", "5"], "--steps", "--set train.steps=VALUE")
        self.assert_refused(["train", "recipe.toml", "--save-every=5"], "--save-every=5", "--set run.save_every=VALUE")
        self.assert_refused(["train", "recipe.toml", "--memori", "5MiB"], "--memori", "did you mean --memory?")
        self.assert_refused(["--bogus"], "--bogus", "--help")

    def test_flag_without_its_value(self):
        self.assert_refused(["train", "recipe.toml", "--resume"], "--resume")

    def test_sample_temperature(self):
        self.train({"train.steps": 1})
        for value in ("-1", "warm"):
            self.assert_refused(["sample", "out", "--temperature", value], "--temperature")

    def test_sample_without_a_checkpoint(self):
        self.assert_refused(["sample", "no-run"], "no-run", "does not exist")
        self.assert_refused(["sample", "corpus.txt"], "corpus.txt", "not a folder")

    def test_lr_range_the_wrong_way_round(self):
        self.assert_refused(
            ["lr-range", "recipe.toml", "--from", "1", "--to", "0.1"], "--to 0.1", "--from 1"
        )

    def test_lr_range_svg_that_cannot_be_written(self):
        self.assert_refused(
            ["lr-range", "recipe.toml", "--steps", "3", "--svg", "no/folder/x.svg"],
            "no/folder/x.svg",
        )

    def test_full_standard_output_is_no_success(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        for arguments in (["options"], ["describe", "recipe.toml", "--json"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = self.run_program(*arguments, stdout=full)
            self.assert_fails(result, "output")


class Gpu(BadInputTestCase):
    """Settings for a GPU where there is none, or that go with nothing but one."""

    COMMANDS = ("train", "plan", "profile", "simulate", "check", "lr-range")

    def test_cuda_in_a_build_without_it(self):
        probe = self.run_program("profile", "recipe.toml", "--set", "run.device=cuda")
        if probe.code == 0:
            self.skipTest("there is a GPU here")
        # A build with CUDA names the machine instead.
        remedy = "nvidia-smi" if "no usable GPU" in probe.stderr else "cmake --preset cuda"
        for command in self.COMMANDS:
            with self.subTest(command=command):
                line = self.assert_refused(
                    [command, "recipe.toml", "--set", "run.device=cuda"],
                    'run.device = "cuda"',
                    'use run.device = "cpu"',
                    remedy,
                )
                self.assertNotRegex(line, r"  |\. ?$")

    def test_cuda_is_asked_for_before_anything_is_written(self):
        if self.run_program("profile", "recipe.toml", "--set", "run.device=cuda").code == 0:
            self.skipTest("there is a GPU here")
        self.assert_train_refused({"run.device": "cuda", "run.out": "new/run"}, "run.device")
        self.assertEqual(cli.checkpoint_steps(self.folder / "new/run"), [])
        # A later run may use the folder.
        self.train({"run.out": "new/run", "train.steps": 1})

    def test_describe_needs_no_gpu(self):
        result = self.run_program("describe", "recipe.toml", "--set", "run.device=cuda")
        self.assertEqual(result.code, 0, result)

    def test_precisions_of_a_gpu_on_the_cpu(self):
        for precision, other in (("tf32", "float32"), ("float16", "bfloat16")):
            for command in self.COMMANDS:
                with self.subTest(command=command, precision=precision):
                    self.assert_refused(
                        [command, "recipe.toml", "--set", f"train.precision={precision}"],
                        f'train.precision = "{precision}"',
                        'run.device = "cuda"',
                        f'try train.precision = "{other}"',
                    )

    def test_loss_scales_that_are_none(self):
        for key in ("train.loss_scale", "train.loss_scale_least"):
            for value in ("0", "-1", "1e30", "nan"):
                self.assert_train_refused({key: value}, key)
        for key in ("train.loss_scale_interval", "train.loss_scale_hysteresis"):
            for value in ("0", "-1", "1.5"):
                self.assert_train_refused({key: value}, key)
        self.assert_train_refused(
            {"train.loss_scale": 2, "train.loss_scale_least": 4},
            "train.loss_scale_least = 4",
            "train.loss_scale = 2",
            "try train.loss_scale_least = 1",
        )

    def test_graphs_on_the_cpu(self):
        self.assert_train_refused(
            {"run.graphs": "on"}, 'run.graphs = "on"', '"cuda", not "cpu"', 'run.graphs = "auto"'
        )

    def test_links_on_the_cpu(self):
        self.assert_train_refused(
            {"run.links": "nccl"}, 'run.links = "nccl"', '"cuda", not "cpu"', 'run.links = "auto"'
        )

    def test_links_of_another_kind(self):
        self.assert_train_refused({"run.links": "ib"}, "run.links", '"auto", "pinned" or "nccl"')

    def test_graphs_with_dropout(self):
        # Found before the device is opened, so on any machine.
        self.assert_train_refused(
            {"run.graphs": "on", "run.device": "cuda", "model.dropout": 0.1},
            'run.graphs = "on"',
            "model.dropout = 0, not 0.1",
        )

    def test_graphs_of_another_kind(self):
        self.assert_train_refused({"run.graphs": "maybe"}, "run.graphs", '"auto", "on" or "off"')
        self.assert_train_refused({"run.device": "gpu"}, "run.device", '"cpu" or "cuda"')
        self.assert_train_refused({"run.deterministic": 1}, "run.deterministic", "true or false")

    def test_settings_of_a_gpu_that_do_no_harm_on_the_cpu(self):
        plain = self.train({"run.out": "plain"})["losses"]
        for values in ({"run.graphs": "off"}, {"run.graphs": "auto"}, {"run.deterministic": True}):
            self.assertEqual(self.train({"run.out": "other", **values})["losses"], plain)


class Bench(BadInputTestCase):
    def test_without_a_subcommand(self):
        self.assert_refused(["bench"], "subcommand", "--help")

    def test_unknown_subcommand(self):
        self.assert_refused(["bench", "stpe"], "--help")

    def test_unknown_size(self):
        self.assert_refused(["bench", "step", "--size", "125M"], "--size", "125M", "124M", "1558M")

    def test_numbers_out_of_range(self):
        for option, values in (
            ("--window", ("0", "-1", "soon")),
            ("--rounds", ("0", "-1", "1.5")),
            ("--warm", ("-1", "soon")),
            ("--batch", ("-1", "many")),
        ):
            for value in values:
                with self.subTest(option=option, value=value):
                    line = self.assert_refused(["bench", "step", option, value], option)
                    self.assertLess(len(line), 200, "a line, not a number of 300 digits")

    def test_settings_that_are_none(self):
        step = ["bench", "step", "--peers", "none"]
        self.assert_refused([*step, "--set", "train.stpes=5"], "train.stpes", "train.steps?")
        self.assert_refused([*step, "--set", "model.heads=5"], "model.width", "model.heads = 5")
        self.assert_refused(
            [*step, "--set", "run.device=cpu", "--set", "train.precision=float16"],
            'train.precision = "float16"',
            'run.device = "cuda"',
        )

    def test_without_a_gpu(self):
        if self.run_program("profile", "recipe.toml", "--set", "run.device=cuda").code == 0:
            self.skipTest("there is a GPU here")
        self.assert_refused(["bench", "step", "--peers", "none"], 'use run.device = "cpu"')

    def test_limit_that_is_too_small(self):
        line = self.assert_refused(
            [
                *("bench", "step", "--batch", "1", "--peers", "none", "--json"),
                *cli.settings(cli.SMALL_STEP),
                *("--set", "plan.memory=100KiB"),
            ],
            code=1,
        )
        self.assertRegex(line, "does not fit|over the limit")


class Checkpoints(BadInputTestCase):
    """Checkpoints that are damaged, incomplete, or of something else."""

    # The rate of a step does not depend on how many follow, so 4 steps are the first of 6.
    VALUES = {"train.schedule": "constant", "run.save_every": 2}

    @classmethod
    def setUpClass(cls):
        cls.trained = cli.make_workspace(tempfile.mkdtemp(prefix="penstock-test-"), cls.VALUES)
        cls.addClassCleanup(shutil.rmtree, cls.trained, ignore_errors=True)
        result = cli.run("train", "recipe.toml", "--set", "train.steps=4", cwd=cls.trained)
        if result.code != 0:
            raise AssertionError(result)

    def setUp(self):
        super().setUp()
        self.write_recipe(self.VALUES)
        shutil.copytree(self.trained / "out", self.folder / "out", symlinks=True)
        self.newest = self.folder / "out" / "step-00000004"

    def assert_resume_refused(self, *needles, values=None, source="out"):
        all_values = {"train.steps": 6, **(values or {})}
        for out in ("out", "elsewhere"):
            self.assert_train_refused(
                {**all_values, "run.out": out}, *needles, flags=["--resume", source]
            )

    def flip(self, name, position, bit=0):
        path = self.newest / name
        data = bytearray(path.read_bytes())
        data[position] ^= 1 << bit
        path.write_bytes(data)

    def test_resume_from_nowhere(self):
        self.assert_resume_refused("no-run", "does not exist", source="no-run")

    def test_resume_from_a_folder_without_a_checkpoint(self):
        (self.folder / "bare").mkdir()
        self.assert_resume_refused("bare", "no checkpoint", "step-", source="bare")

    def test_resume_from_a_file(self):
        self.assert_resume_refused("corpus.txt", "not a folder", source="corpus.txt")

    def test_resume_from_another_model(self):
        self.assert_resume_refused(
            "step-00000004", "model.width = 32", "48", values={"model.width": 48}
        )
        self.assert_resume_refused(
            "step-00000004", "model.layers = 2", "3", values={"model.layers": 3}
        )
        self.assert_resume_refused(
            "step-00000004", "model.heads = 4", "2", values={"model.heads": 2}
        )
        self.assert_resume_refused(
            "step-00000004", "model.tied = true", "false", values={"model.tied": False}
        )

    def test_resume_with_another_optimizer(self):
        self.assert_resume_refused(
            "step-00000004", 'train.optimizer = "adamw"', '"sgd"', values={"train.optimizer": "sgd"}
        )

    def test_truncated_weights(self):
        path = self.newest / "model.safetensors"
        whole = path.read_bytes()
        for length in (len(whole) - 1, 0):
            path.write_bytes(whole[:length])
            self.assert_resume_refused(
                "step-00000004", "model.safetensors", "damaged", "older checkpoint"
            )
            self.assert_refused(["sample", "out"], "model.safetensors", "damaged")

    def test_one_flipped_byte_in_each_file(self):
        for name in cli.CHECKPOINT_FILES:
            original = (self.newest / name).read_bytes()
            resume = ["train", "recipe.toml", "--json", "--resume", "out"]
            sample = ["sample", "out", "--json"]
            for position, bit, command in (
                (0, 0, resume),
                (len(original) // 2, 3, sample),
                (len(original) - 1, 6, resume),
            ):
                with self.subTest(file=name, position=position):
                    self.flip(name, position, bit)
                    self.assert_refused(
                        command, "step-00000004", name, "damaged", "older checkpoint"
                    )
                    (self.newest / name).write_bytes(original)
        self.assertEqual(self.train({}, "--resume", "out")["steps"], 2)

    def test_flipped_digit_in_the_manifest(self):
        text = (self.newest / "manifest.json").read_text()
        for before, after in (
            ('"step": 4', '"step": 2'),
            ('"format": 1', '"format": 3'),
            ('"bytes": 1', '"bytes": 3'),
            ("model.safetensors", "model/safetensors"),
        ):
            self.assertIn(before, text)
            (self.newest / "manifest.json").write_text(text.replace(before, after, 1))
            self.assert_refused(["sample", "out"], "step-00000004")

    def test_the_older_checkpoint_serves_after_damage(self):
        straight = self.train({"run.out": "straight"})["losses"]
        self.flip("model.safetensors", 1000)
        resumed = self.train({"run.out": "other"}, "--resume", "out/step-00000002")
        self.assertEqual(resumed["first_step"], 2)
        self.assertEqual(resumed["losses"], straight[2:])

    def test_missing_file(self):
        for name in cli.CHECKPOINT_FILES[:-1]:
            original = (self.newest / name).read_bytes()
            (self.newest / name).unlink()
            with self.subTest(file=name):
                self.assert_train_refused(
                    {"train.steps": 6}, "step-00000004", name, "missing", flags=["--resume", "out"]
                )
                self.assert_refused(["sample", "out"], "step-00000004", name, "missing")
            (self.newest / name).write_bytes(original)

    def test_missing_manifest(self):
        (self.newest / "manifest.json").unlink()
        self.assert_resume_refused("step-00000004", "manifest.json", source=str(self.newest))

    def test_weights_that_are_missing(self):
        self.assert_train_refused(
            {"model.weights": "no-weights"}, "model.weights", "no-weights", "does not exist"
        )

    def test_weights_of_another_model(self):
        for source in ("out", "out/step-00000004", "out/step-00000004/model.safetensors"):
            for key, value in (("model.width", 48), ("model.layers", 1), ("model.layers", 3)):
                with self.subTest(source=source, key=key, value=value):
                    self.assert_train_refused(
                        {"model.weights": source, key: value, "run.out": "new"}, "step-00000004"
                    )

    def test_weights_with_another_number_of_heads(self):
        # Shows in no shape, only in the config.json beside the weights.
        for source in ("out/step-00000004", "out"):
            with self.subTest(source=source):
                self.assert_train_refused(
                    {"model.weights": source, "model.heads": 2, "run.out": "new"},
                    "n_head",
                    "model.heads",
                )

    def test_weights_with_another_kind_of_head(self):
        self.train({"model.tied": False, "run.out": "untied"})
        # Without a config.json beside them, the tensors tell.
        for run in ("out", "untied"):
            weights = self.folder / run / "latest" / "model.safetensors"
            shutil.copy(weights, self.folder / f"{run}.safetensors")
        tied, untied = {"model.tied": True}, {"model.tied": False}
        for source, values, *needles in (
            ("untied", tied, "tie_word_embeddings is false", "set model.tied = false"),
            ("out", untied, "tie_word_embeddings is true", "set model.tied = true"),
            ("untied.safetensors", tied, "lm_head.weight differs", "set model.tied = false"),
            ("out.safetensors", untied, "no tensor lm_head.weight", "set model.tied = true"),
        ):
            with self.subTest(source=source):
                values = {**values, "model.weights": source, "run.out": "new"}
                self.assert_train_refused(values, *needles)

    def test_weights_of_a_damaged_checkpoint(self):
        size = (self.newest / "model.safetensors").stat().st_size
        self.flip("model.safetensors", size - 3, 6)
        for source in ("out/step-00000004", "out"):
            with self.subTest(source=source):
                self.assert_train_refused(
                    {"model.weights": source, "run.out": "new"}, "model.safetensors", "damaged"
                )

    def test_weights_that_are_no_safetensors(self):
        self.assert_train_refused({"model.weights": "corpus.txt", "run.out": "new"}, "corpus.txt")


class Divergence(BadInputTestCase):
    VALUES = {
        "train.optimizer": "sgd",
        "train.lr": 1e6,
        "train.clip": 0,
        "train.steps": 50,
        "run.save_every": 1,
        "run.keep": 0,
    }

    def test_says_the_step_and_saves_nothing_after(self):
        result = self.run_program("train", "recipe.toml", "--json", *cli.settings(self.VALUES))
        line = self.assert_fails(result, "not finite", "step", "train.lr", code=1)
        step = int(line.split("at step ")[1].split(":")[0])
        finite = len(cli.metric_losses(self.folder / "out"))
        self.assertEqual(step, finite + 1, "the step that is named is not the one after the last")
        saved = cli.checkpoint_steps(self.folder / "out")
        self.assertLessEqual(max(saved, default=0), finite)
        self.assertEqual(cli.temporaries(self.folder), [])

    def test_a_last_step_that_ruins_the_weights_is_no_success(self):
        # The loss of the only step is finite; the weights it leaves are not.
        result = self.run_program(
            "train",
            "recipe.toml",
            "--json",
            *cli.settings({**self.VALUES, "train.lr": 1e38, "train.steps": 1}),
        )
        self.assert_fails(result, "not finite", code=1)
        self.assertEqual(cli.checkpoint_steps(self.folder / "out"), [])


class Lock(BadInputTestCase):
    def test_two_runs_in_one_folder(self):
        self.write_recipe({"train.steps": 100000})
        first = cli.start("train", "recipe.toml", cwd=self.folder)
        try:
            deadline = time.monotonic() + cli.TIMEOUT_S
            while not (self.folder / "out/metrics.jsonl").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            second = self.run_program("train", "recipe.toml", "--json")
            self.assert_fails(second, "run.out", "in use", "--set run.out=")
            self.assertIsNone(first.poll(), "the first run goes on")
        finally:
            first.kill()
            first.communicate()


class FullDisk(BadInputTestCase):
    """A save that finds no room: the run goes on, the checkpoint before it stays, and training goes on from it."""

    VALUES = {
        "train.steps": 6,
        "train.schedule": "constant",
        "run.save_every": 2,
        "run.save_wait": 0,
        "model.dropout": 0.1,
    }

    def setUp(self):
        super().setUp()
        self.write_recipe(self.VALUES)
        self.straight = self.train({"run.out": "straight"})["losses"]

    def assert_failed_saves(self, result, *needles):
        """One on the way, which the run survives, and the last."""
        self.assertRegex(result.stderr, "(?m)^warning: cannot save step 4: .*; the run goes on")
        self.assert_fails(result, "cannot save step 6", "step-00000002", "--resume", *needles)
        self.assertEqual(cli.temporaries(self.folder), [])
        self.assertEqual(cli.checkpoint_steps(self.folder / "out"), [2])
        self.assertEqual(os.readlink(self.folder / "out" / "latest"), "step-00000002")
        self.assertEqual(cli.checkpoint_damage(self.folder / "out" / "step-00000002", 2), "")

    def assert_continues(self):
        resumed = self.train({}, "--resume", "out")
        self.assertEqual(resumed["first_step"], 2)
        self.assertEqual(resumed["losses"], self.straight[2:])
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(f"out/step-00000006/{name}", f"straight/step-00000006/{name}")

    def mount_tmpfs(self, size):
        out = self.folder / "out"
        out.mkdir(exist_ok=True)
        if os.geteuid() != 0 or shutil.which("mount") is None:
            self.skipTest("mounting a small tmpfs needs root")
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(out)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            self.skipTest("mounting a tmpfs is not allowed here")
        self.addCleanup(subprocess.run, ["umount", str(out)], check=False)

    def grow_tmpfs(self):
        remount = ["mount", "-o", "remount,size=8m", str(self.folder / "out")]
        subprocess.run(remount, capture_output=True, check=True)

    def test_small_disk(self):
        self.mount_tmpfs("640k")  # room for one checkpoint of 420 KiB
        self.assert_failed_saves(self.run_program("train", "recipe.toml", "--json"), "No space left on device")
        self.grow_tmpfs()
        self.assert_continues()

    def test_disk_that_filled_up_before_a_resume(self):
        self.mount_tmpfs("8m")
        self.train({"train.steps": 2})
        free = os.statvfs(self.folder / "out")
        filler = self.folder / "out" / "filler"
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize))
        result = self.run_program("train", "recipe.toml", "--json", "--resume", "out")
        self.assert_fails(result, "No space left on device")
        self.assertEqual(cli.checkpoint_damage(self.folder / "out" / "step-00000002", 2), "")
        self.assertEqual(cli.temporaries(self.folder), [])
        filler.unlink()
        self.assert_continues()
        steps = [step for step, _ in cli.metric_losses(self.folder / "out")]
        self.assertEqual(steps, list(range(1, 7)))

    def test_file_size_limit(self):
        self.train({"train.steps": 2})

        def limit_file_size():
            # Python's own children get SIGXFSZ back; ignored, the write fails instead.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

        result = self.run_program(
            "train", "recipe.toml", "--json", "--resume", "out", preexec_fn=limit_file_size
        )
        self.assert_failed_saves(result, "optimizer.safetensors", "File too large")
        self.assert_continues()


# Only what holds the tests is a test itself.
del BadInputTestCase

if __name__ == "__main__":
    cli.main()
