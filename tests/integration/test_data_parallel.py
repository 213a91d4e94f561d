"""Replicas: threads and processes have the same bits, bytes sent are those of the formulas, checkpoints go from any layout
to any other, a flipped bit is caught, and bad input gets its line."""

import array
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import time
import unittest

import penstock_cli as cli

MPIRUN = shutil.which("mpirun")
needs_mpi = unittest.skipIf(MPIRUN is None, "there is no mpirun")

SHARDS = ("none", "optimizer", "gradients", "parameters")
DATA = {
    "model.layers": 3,
    "model.width": 48,
    "model.dropout": 0.1,
    "train.steps": 8,
    "train.batch": 24,
    "train.clip": 1.0,
    "plan.collectives": "direct",
    "run.validate_sequences": 10,
}


class DataTestCase(cli.CliTestCase):
    def setUp(self):
        super().setUp()
        self.write_recipe(DATA)

    def launch(self, values, *flags, launcher="threads", command="train"):
        arguments = [command, "recipe.toml", "--json", *cli.settings(values), *flags]
        if launcher == "threads":
            return cli.start(*arguments, cwd=self.folder)
        ranks = values.get("plan.pipeline", 1) * values.get("plan.data", 1)
        return subprocess.Popen(
            [MPIRUN, "--oversubscribe", "-n", str(ranks), cli.PROGRAM, *map(str, arguments)],
            cwd=self.folder,
            env={
                **os.environ,
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )

    def train(self, values, *flags, launcher="threads", code=0):
        result = cli.finish(self.launch(values, *flags, launcher=launcher), [launcher, values])
        self.assertEqual(result.code, code, result)
        return result.json() if code == 0 else result

    def assert_close(self, found, expected, allowed=1e-6):
        self.assertEqual(len(found), len(expected))
        for ours, theirs in zip(found, expected):
            self.assertAlmostEqual(ours / theirs, 1, delta=allowed)


class SameNumbers(DataTestCase):
    @needs_mpi
    def test_processes_have_the_bits_of_threads(self):
        for shard in SHARDS:
            with self.subTest(shard=shard):
                values = {
                    "plan.pipeline": 2,
                    "plan.data": 2,
                    "plan.shard": shard,
                    "plan.micro_batches": 2,
                    # One that is chosen may have both users of the table on one rank, or not.
                    "plan.schedule": "1f1b",
                }
                threads = self.train({**values, "run.out": f"threads-{shard}"})
                processes = self.train({**values, "run.out": f"mpi-{shard}"}, launcher="mpi")
                self.assertEqual(processes["losses"], threads["losses"])
                self.assertEqual(processes["validation_loss"], threads["validation_loss"])
                for name in ("model.safetensors", "optimizer.safetensors"):
                    self.assert_same_file(
                        f"threads-{shard}/step-00000008/{name}", f"mpi-{shard}/step-00000008/{name}"
                    )

    @needs_mpi
    def test_other_collectives_differ_by_rounding(self):
        one = self.train({"plan.micro_batches": 3, "run.out": "one"})
        for number, algorithm in enumerate(("own", "ring", "butterfly", "tree", "naive", "auto")):
            with self.subTest(algorithm=algorithm):
                found = self.train(
                    {
                        "plan.data": 3,
                        "plan.shard": SHARDS[number % 4],
                        "plan.collectives": algorithm,
                        "run.out": f"out-{algorithm}",
                    },
                    launcher="mpi",
                )
                self.assert_close(found["losses"], one["losses"])

    def test_gradients_in_bfloat16_train_too(self):
        values = {
            "train.precision": "bfloat16",
            "plan.data": 2,
            "plan.shard": "none",
            "train.steps": 30,
        }
        whole = self.train({**values, "run.out": "whole"})
        half = self.train({**values, "plan.reduce": "compute", "run.out": "half"})
        self.assertNotEqual(half["losses"], whole["losses"])
        self.assert_close(half["losses"][-5:], whole["losses"][-5:], allowed=5e-3)
        self.assertAlmostEqual(half["sent_bytes"] / whole["sent_bytes"], 0.5, delta=0.01)


class Reading(DataTestCase):
    """What ranks read of the data's files: bytes of tokens, one each in this text."""

    STEPS, BATCH, CONTEXT, HELD_OUT, AHEAD = 8, 24, 32, 10, 4

    def rows_read(self, found, rank):
        """In training: at least those of the steps, and at most what is kept ready beside them."""
        return found["rank_read_bytes"][rank] / self.CONTEXT

    def test_each_rank_reads_the_rows_of_its_replica_and_the_field_of_its_stage(self):
        for launcher in ("threads", "mpi") if MPIRUN else ("threads",):
            with self.subTest(launcher=launcher):
                found = self.train(
                    {
                        "plan.pipeline": 2,
                        "plan.data": 2,
                        "plan.micro_batches": 2,
                        "plan.schedule": "1f1b",
                        "run.out": launcher,
                    },
                    launcher=launcher,
                )
                self.assertEqual(len(found["rank_read_bytes"]), 4)
                for rank in range(4):
                    rows = self.rows_read(found, rank)
                    # One field of half the rows. Each replica evaluates some of the validation's sequences.
                    self.assertGreaterEqual(rows, self.STEPS * self.BATCH / 2)
                    self.assertLessEqual(rows, (self.STEPS + self.AHEAD) * self.BATCH / 2 + self.HELD_OUT)
                    self.assertLessEqual(
                        found["rank_ahead_bytes"][rank], self.AHEAD * self.BATCH / 2 * self.CONTEXT * 8
                    )

    def write_tokens(self, wrong_at=None):
        tokens = array.array("H", (i * 37 % 251 for i in range(40_000)))
        if wrong_at is not None:
            tokens[wrong_at] = 60_000
        (self.folder / "tokens.bin").write_bytes(tokens.tobytes())
        return {
            "data.path": "tokens.bin",
            "data.tokenizer": "tokens",
            "plan.pipeline": 2,
            "plan.data": 2,
            "plan.micro_batches": 2,
            "plan.schedule": "1f1b",
        }

    def test_ranks_look_through_a_token_file_together_and_read_what_is_theirs(self):
        found = self.train(self.write_tokens())
        for read in found["rank_read_bytes"]:
            # A quarter of the file, of 2 bytes a token; then rows of one field.
            rows = (read - 40_000 * 2 / 4) / (2 * self.CONTEXT)
            self.assertGreaterEqual(rows, self.STEPS * self.BATCH / 2 - 1)
            self.assertLessEqual(rows, (self.STEPS + self.AHEAD) * self.BATCH / 2 + self.HELD_OUT + 1)

    def test_a_wrong_id_is_found_before_the_first_step_by_whoever_has_it(self):
        for launcher in ("threads", "mpi") if MPIRUN else ("threads",):
            for wrong_at in (5, 39_999):
                with self.subTest(launcher=launcher, wrong_at=wrong_at):
                    result = self.train(
                        {**self.write_tokens(wrong_at), "run.out": "wrong"}, launcher=launcher, code=2
                    )
                    self.assertIn(f"tokens.bin has token 60000 at position {wrong_at}", result.stderr)
                    self.assertFalse(list((self.folder / "wrong").glob("step-*")))

    def test_one_rank_reads_all_of_it(self):
        found = self.train({"run.out": "one"})
        rows = self.rows_read(found, 0)
        self.assertGreaterEqual(rows, 2 * self.STEPS * self.BATCH)
        self.assertLessEqual(rows, 2 * ((self.STEPS + self.AHEAD) * self.BATCH + self.HELD_OUT))


class Bytes(DataTestCase):
    def test_sent_are_those_of_the_formulas(self):
        # A table of no weight beside the layers, so that what is gathered once more or less is small.
        self.write_recipe({**DATA, "model.layers": 6, "model.width": 64, "train.steps": 2})
        replicas = 4
        share = (replicas - 1) / replicas
        for micro_batches in (1, 3):
            for shard, psi in (
                ("none", 2),
                ("optimizer", 2),
                ("gradients", micro_batches + 1),
                ("parameters", 3 * micro_batches),
            ):
                with self.subTest(shard=shard, micro_batches=micro_batches):
                    found = self.train(
                        {
                            "plan.data": replicas,
                            "plan.shard": shard,
                            "plan.micro_batches": micro_batches,
                            "train.batch": 12,
                            "run.out": f"{shard}-{micro_batches}",
                        }
                    )
                    expected = psi * 4 * found["parameters"] * share
                    # The table is gathered twice and not thrice, and reduced twice where it is in buckets.
                    self.assertAlmostEqual(found["sent_bytes"] / expected, 1, delta=0.06)


class Checkpoints(DataTestCase):
    LAYOUTS = (
        {"plan.pipeline": 1, "plan.data": 1, "plan.shard": "none", "plan.micro_batches": 4},
        {"plan.pipeline": 1, "plan.data": 3, "plan.shard": "gradients", "plan.micro_batches": 2},
        {"plan.pipeline": 4, "plan.data": 1, "plan.shard": "none", "plan.micro_batches": 4},
        {"plan.pipeline": 2, "plan.data": 2, "plan.shard": "optimizer", "plan.micro_batches": 2},
    )
    SAVED = {"plan.pipeline": 2, "plan.data": 2, "plan.shard": "parameters", "plan.micro_batches": 2}

    def test_a_run_goes_on_under_any_layout(self):
        whole = self.train({**self.SAVED, "run.out": "whole", "run.save_every": 4})
        for number, layout in enumerate(self.LAYOUTS):
            with self.subTest(**layout):
                # Back to there, and through one more layout.
                out = f"resumed-{number}"
                rest = self.train(
                    {**layout, "run.out": out}, "--resume", "whole/step-00000004"
                )
                self.assertEqual(rest["first_step"], 4)
                self.assert_close(rest["losses"], whole["losses"][4:])
                self.assertAlmostEqual(rest["validation_loss"] / whole["validation_loss"], 1, delta=1e-6)

    def test_and_back(self):
        whole = self.train({**self.LAYOUTS[0], "run.out": "whole", "run.save_every": 4})
        rest = self.train({**self.SAVED, "run.out": "rest"}, "--resume", "whole/step-00000004")
        self.assert_close(rest["losses"], whole["losses"][4:])

    @needs_mpi
    def test_processes_save_and_load(self):
        whole = self.train({**self.SAVED, "run.out": "whole", "run.save_every": 4}, launcher="mpi")
        rest = self.train(
            {**self.LAYOUTS[1], "run.out": "rest"}, "--resume", "whole/step-00000004", launcher="mpi"
        )
        self.assert_close(rest["losses"], whole["losses"][4:])


class Drift(DataTestCase):
    """A bit that flips in the memory of one replica, which we do from outside."""

    def children(self, parent):
        found = subprocess.run(
            ["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False
        )
        return sorted(int(line) for line in found.stdout.split())

    def flip(self, pid, pattern):
        """In every place where the bytes of the pattern are held."""
        flipped = 0
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
                match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0\s*(\S*)$", line)
                if not match:
                    continue
                begin, end = (int(match[i], 16) for i in (1, 2))
                try:
                    memory.seek(begin)
                    content = memory.read(end - begin)
                except OSError:
                    continue
                at = content.find(pattern)
                while at >= 0:
                    memory.seek(begin + at)
                    memory.write(bytes([pattern[0] ^ 1]))
                    flipped += 1
                    at = content.find(pattern, at + 1)
        return flipped

    @needs_mpi
    def test_is_caught_named_and_not_saved(self):
        # With a rate of 0 the weights are, at every moment, those of the first checkpoint.
        values = {
            "train.lr": 0,
            "train.weight_decay": 0,
            "train.steps": 100000,
            "plan.data": 2,
            "plan.shard": "none",
            "run.check_replicas": 20,
            "run.save_every": 100,
        }
        process = self.launch(values, launcher="mpi")
        try:
            deadline = time.time() + 60
            while not cli.checkpoint_steps(self.folder / "out") and time.time() < deadline:
                self.assertIsNone(process.poll())
                time.sleep(0.05)
            ranks = self.children(process.pid)
            self.assertEqual(len(ranks), 2)
            step = cli.checkpoint_steps(self.folder / "out")[-1]
            file = self.folder / "out" / f"step-{step:08}" / "model.safetensors"
            content = file.read_bytes()
            (length,) = struct.unpack("<Q", content[:8])
            name = "transformer.h.1.mlp.c_fc.weight"
            begin, _ = json.loads(content[8 : 8 + length])[name]["data_offsets"]
            pattern = content[8 + length + begin : 8 + length + begin + 64]
            os.kill(ranks[1], signal.SIGSTOP)
            try:
                flipped = self.flip(ranks[1], pattern)
            finally:
                os.kill(ranks[1], signal.SIGCONT)
            self.assertGreaterEqual(flipped, 1)
            result = cli.finish(process)
        finally:
            process.kill()
        self.assertEqual(result.code, 1, result)
        lines = [line for line in result.stderr.splitlines() if "drifted apart" in line]
        self.assertTrue(lines, result)
        found = re.search(r"by step (\d+): (\S+) of rank (\d) differs from that of rank (\d)", lines[0])
        self.assertTrue(found, lines[0])
        self.assertEqual(found[2], name)
        self.assertEqual({found[3], found[4]}, {"0", "1"})
        self.assertEqual(int(found[1]) % 20, 0)
        # The newest checkpoint is whole and has the bit as it was.
        newest = cli.checkpoint_steps(self.folder / "out")[-1]
        self.assertLess(newest, int(found[1]))
        saved = (self.folder / "out" / f"step-{newest:08}" / "model.safetensors").read_bytes()
        self.assertEqual(saved, content)


class Layouts(DataTestCase):
    """What a recipe leaves open of plan.pipeline, plan.data and plan.shard."""

    def plan(self, values, *flags, code=0):
        result = cli.finish(self.launch(values, *flags, command="plan"))
        self.assertEqual(result.code, code, result)
        return result

    def test_are_compared_and_the_best_is_planned(self):
        found = self.plan({"plan.micro_batches": 2}, "--ranks", "4").json()
        layouts = found["layouts"]
        self.assertEqual(
            {(one["pipeline"], one["data"]) for one in layouts}, {(1, 4), (2, 2), (4, 1)}
        )
        self.assertEqual(len(layouts), 4 + 4 + 1)
        best = layouts[0]
        self.assertTrue(best["feasible"])
        self.assertEqual(found.get("data", 1), best["data"])
        fastest = min(one["step_s"] for one in layouts if one["feasible"])
        self.assertLessEqual(best["step_s"], 1.01 * fastest)
        by_shard = {one["shard"]: one for one in layouts if one["data"] == 4}
        peaks = [by_shard[shard]["peak_bytes"] for shard in ("none", "optimizer", "gradients")]
        self.assertEqual(peaks, sorted(peaks, reverse=True))
        self.assertGreater(by_shard["parameters"]["sent_bytes"], by_shard["none"]["sent_bytes"])
        text = cli.run(
            "plan", "recipe.toml", "--ranks", "4", *cli.settings({"plan.micro_batches": 2}), cwd=self.folder
        )
        self.assertIn("chosen", text.stdout)
        self.assertIn("sent to replicas", text.stdout)

    def test_a_limit_leads_to_shards(self):
        layouts = self.plan({"plan.pipeline": 1}, "--ranks", "2").json()["layouts"]
        whole = next(one for one in layouts if one["data"] == 2 and one["shard"] == "none")
        sharded = next(one for one in layouts if one["data"] == 2 and one["shard"] == "gradients")
        limit = (whole["peak_bytes"] + sharded["peak_bytes"]) // 2
        values = {"plan.data": 2, "plan.memory": limit, "plan.recompute": "none"}
        found = self.plan(values).json()
        self.assertIn(found["shard"], ("optimizer", "gradients", "parameters"))
        result = self.train({**values, "train.steps": 2})
        self.assertLessEqual(result["peak_bytes"], limit)

    @needs_mpi
    def test_are_chosen_for_the_ranks_that_a_launcher_started(self):
        one = self.train({"plan.micro_batches": 2, "run.out": "one"})
        arguments = ["train", "recipe.toml", "--json", *cli.settings({"run.out": "two"})]
        result = subprocess.run(
            [MPIRUN, "--oversubscribe", "-n", "2", cli.PROGRAM, *map(str, arguments)],
            cwd=self.folder,
            env={
                **os.environ,
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 0, result)
        self.assertIn("layout: plan.pipeline = ", result.stderr)
        found = json.loads(result.stdout)
        self.assertEqual(len(found["rank_peak_bytes"]), 2)
        self.assert_close(found["losses"], one["losses"], allowed=1e-5)

    def test_what_is_given_stays(self):
        layouts = self.plan(
            {"plan.pipeline": 2, "plan.shard": "optimizer", "plan.micro_batches": 2}, "--ranks", "4"
        ).json()["layouts"]
        self.assertEqual([(one["pipeline"], one["data"], one["shard"]) for one in layouts], [(2, 2, "optimizer")])

    def test_where_none_fits_the_leanest_is_named(self):
        result = self.train({"plan.memory": "1MiB"}, "--ranks", "2", code=1)
        self.assertRegex(
            result.errors()[0],
            r"does not fit: of 5 layouts of the ranks the leanest, plan.pipeline = \d, .* needs at least ",
        )


class OneBit(DataTestCase):
    OPTIMIZERS = ("onebit-adam", "zeroone-adam", "onebit-lamb")
    VALUES = {"train.steps": 16, "train.clip": 1.0, "plan.data": 2, "plan.shard": "none"}

    def test_send_little_and_resume(self):
        for optimizer in self.OPTIMIZERS:
            with self.subTest(optimizer=optimizer):
                values = {**self.VALUES, "train.optimizer": optimizer, "run.save_every": 8}
                whole = self.train({**values, "run.out": f"{optimizer}-whole"})
                full = 2 * 4 * whole["parameters"] / 2
                self.assertLess(whole["sent_bytes"], full / 10)
                rest = self.train(
                    {**values, "run.out": f"{optimizer}-rest"},
                    *("--resume", f"{optimizer}-whole/step-00000008"),
                )
                self.assertEqual(rest["losses"], whole["losses"][8:])
                # Another number of replicas starts with the mean of the errors: not the same, but near.
                other = self.train(
                    {**values, "plan.data": 3, "run.out": f"{optimizer}-other"},
                    *("--resume", f"{optimizer}-whole/step-00000008"),
                )
                self.assert_close(other["losses"], whole["losses"][8:], allowed=0.05)
                # Twice as many steps would have frozen the variance later.
                refused = self.train(
                    {**values, "train.steps": 32, "run.out": f"{optimizer}-more"},
                    *("--resume", f"{optimizer}-whole/step-00000008"),
                    code=2,
                )
                self.assertRegex(
                    refused.errors()[-1],
                    f"cannot resume from .*: {optimizer} would have updated its variance in other steps by this "
                    r"recipe; set train.(var_)?freeze_step = 3\b",
                )

    def test_one_replica_stops_where_several_would_be_apart(self):
        values = {**self.VALUES, "train.optimizer": "zeroone-adam", "plan.data": 1, "run.save_every": 10}
        whole = self.train({**values, "run.out": "whole"})
        for data, allowed in ((1, 0), (2, 0.05)):
            with self.subTest(data=data):
                rest = self.train(
                    {**values, "plan.data": data, "run.out": f"rest-{data}"},
                    *("--resume", "whole/step-00000010"),
                )
                self.assert_close(rest["losses"], whole["losses"][10:], allowed=allowed)

    def test_share_their_state_and_work_in_pipelines(self):
        for optimizer in self.OPTIMIZERS:
            with self.subTest(optimizer=optimizer):
                values = {
                    **self.VALUES,
                    "train.optimizer": optimizer,
                    "train.local_step_clipper": 1,
                    "plan.micro_batches": 2,
                }
                whole = self.train({**values, "run.out": f"{optimizer}-1"})
                shared = self.train(
                    {**values, "plan.shard": "optimizer", "run.out": f"{optimizer}-2"}
                )
                self.assertEqual(shared["losses"], whole["losses"])
                values |= {"plan.pipeline": 2, "plan.schedule": "1f1b", "run.save_every": 8}
                piped = self.train({**values, "run.out": f"{optimizer}-3"})
                self.assert_close(piped["losses"], whole["losses"], allowed=0.02)
                # A checkpoint has the shared table once: both stages have had the same bits of it.
                rest = self.train(
                    {**values, "run.out": f"{optimizer}-4"},
                    *("--resume", f"{optimizer}-3/step-00000008"),
                )
                self.assertEqual(rest["losses"], piped["losses"][8:])


class BadInput(DataTestCase):
    def test_gets_its_line(self):
        for values, line in (
            ({"plan.data": 5}, "train.batch = 24 is not divisible by plan.data = 5; try train.batch = 25"),
            (
                {"plan.data": 2, "plan.micro_batches": 5},
                "train.batch = 24, 12 for each of plan.data = 2, is not divisible by plan.micro_batches = 5; "
                "try plan.micro_batches = 4",
            ),
            ({"plan.shard": "gradients"}, "and plan.data is 1; set it to their number"),
            (
                {"plan.data": 2, "plan.keep_gathered": True},
                'plan.keep_gathered = true goes with plan.shard = "parameters", not "auto"',
            ),
            ({"plan.data": 2, "plan.recompute": "sqrt"}, 'replicas take "none", "rotor" or "rotor-uniform"'),
            (
                {
                    "plan.data": 2,
                    "plan.pipeline": 2,
                    "plan.schedule": "2bw",
                    "plan.micro_batches": 2,
                    "train.clip": 0,
                    "model.tied": False,
                },
                'reduces their gradients once a step; try "1f1b"',
            ),
            ({"plan.data": 2, "run.device": "cuda"}, 'plan.data = 2 is for run.device = "cpu" so far'),
            ({"plan.bucket": "0"}, "plan.bucket"),
            ({"plan.shard": "gradient"}, "gradients"),
        ):
            with self.subTest(**values):
                result = self.train(values, code=2)
                self.assertEqual(len(result.errors()), 1, result)
                self.assertIn(line, result.errors()[0])

    def test_ranks_that_do_not_agree(self):
        result = self.train({"plan.data": 2}, "--ranks", "3", code=2)
        self.assertIn(
            "--ranks says 3 ranks, and the plan has 2: plan.pipeline = 1, plan.data = 2; make them agree, as "
            "in --set plan.data=3",
            result.errors()[0],
        )

    def test_a_command_of_one_rank(self):
        result = cli.finish(self.launch({"plan.data": 2}, command="lr-range"))
        self.assertEqual(result.code, 2, result)
        self.assertIn("plan.data is 2", result.errors()[0])

    def test_a_limit_that_no_plan_keeps_gets_an_answer(self):
        result = self.train({"plan.data": 2, "plan.shard": "parameters", "plan.memory": "1MiB"}, code=1)
        self.assertIn("does not fit: rank 0 needs at least", result.errors()[0])


class Check(DataTestCase):
    """penstock check: replicas beside one device that adds up gradients in their order."""

    def check(self, values, *flags, code=0):
        result = cli.finish(self.launch(values, *flags, command="check"))
        self.assertEqual(result.code, code, result)
        return result.json() if code == 0 else result

    def test_every_shard_has_the_bits_of_one_device(self):
        for shard in SHARDS:
            for pipeline in (1, 2):
                with self.subTest(shard=shard, pipeline=pipeline):
                    values = {
                        "plan.data": 2,
                        "plan.shard": shard,
                        "plan.micro_batches": 2,
                        "plan.pipeline": pipeline,
                        **({"plan.schedule": "1f1b"} if pipeline > 1 else {}),
                    }
                    report = self.check(values, "--steps", 2)
                    self.assertIs(report["equal"], True)
                    self.assertIsNone(report["first_difference"])
                    self.assertIsNone(report["tolerance"])
                    self.assertEqual(report["steps"], 2)
                    self.assertEqual(len(report["rank_peak_bytes"]), 2 * pipeline)
                    for held, planned in zip(
                        report["rank_peak_bytes"], report["predicted_rank_peak_bytes"]
                    ):
                        self.assertLessEqual(held, planned)

    def test_another_order_has_a_tolerance(self):
        for values in (
            {"plan.data": 3, "plan.collectives": "ring"},
            {"plan.data": 2, "plan.reduce": "compute", "train.precision": "bfloat16"},
        ):
            with self.subTest(**values):
                report = self.check(values, "--steps", 2)
                self.assertIs(report["equal"], True)
                tolerance = report["tolerance"]
                self.assertIn("plan.", tolerance["why"])
                self.assertLessEqual(tolerance["largest"], tolerance["allowed"])

    def test_text_states_the_tolerance(self):
        settings = cli.settings({"plan.data": 3, "plan.collectives": "ring"})
        result = self.run_program("check", "recipe.toml", "--steps", "1", *settings)
        self.assertEqual(result.code, 0, result)
        self.assertIn("no number but by rounding", result.stdout)
        self.assertIn('plan.collectives = "ring"', result.stdout)
        self.assertIn("1e-05 is allowed", result.stdout)

    def test_signs_are_not_compared(self):
        values = {"plan.data": 2, "train.optimizer": "onebit-adam", "train.freeze_step": 2}
        report = self.check(values, "--steps", 2)
        self.assertIs(report["equal"], True)
        result = self.check(values, "--steps", 3, code=2)
        self.assertEqual(len(result.errors()), 1, result)
        for part in ("onebit-adam", "after step 2", "--steps 2", "train.optimizer=adamw"):
            self.assertIn(part, result.errors()[0])


if __name__ == "__main__":
    unittest.main()
