"""Pipelines: the same numbers as one rank under every schedule, launcher and limit, what happens
when a rank dies or hangs, and plans that others can replay.

With PENSTOCK_FULL=1 in the environment every combination of schedule, ranks, launcher and
micro-batches is trained, else a third of them.
"""

import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

import penstock_cli as cli

REPLAY_PROGRAM = cli.REPOSITORY / "tests" / "integration" / "replay_program.py"
MPIRUN = shutil.which("mpirun")
needs_mpi = unittest.skipIf(MPIRUN is None, "there is no mpirun")

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
ASYNCHRONOUS = ("pipedream", "2bw", "pipemare")
LAUNCHERS = ("threads", "mpi")
RANKS = (2, 4)
MICRO_BATCHES = (1, 3, 8)
# 11 layers, which no number of ranks divides.
PIPELINE = {
    "model.layers": 5,
    "model.dropout": 0.1,
    "train.steps": 10,
    "train.batch": 24,
    "train.clip": 1.0,
    "run.validate_every": 5,
    "run.validate_sequences": 30,
}
LAYERS = 1 + 2 * PIPELINE["model.layers"]

# What a rank waits for in a run: a message of the step, or what the ranks put together after it.
WAITED_FOR = (
    r"(instruction \d+, \w|the norm of the gradients|the gradient of |the end of the step"
    r"|rank 0 to save |\S+ to save it|the end of saving)"
)

shared = None  # the cost tables, measured once: a table for each number of micro-batches


def setUpModule():
    global shared
    shared = pathlib.Path(tempfile.mkdtemp(prefix="penstock-costs-"))
    unittest.addModuleCleanup(shutil.rmtree, shared, ignore_errors=True)
    cli.make_workspace(shared, PIPELINE)
    for parts in MICRO_BATCHES:
        result = cli.run(
            *("profile", "recipe.toml", "--out", costs_file(parts)),
            *cli.settings({"plan.micro_batches": parts}),
            cwd=shared,
        )
        assert result.code == 0, result


def costs_file(parts):
    return str(shared / f"costs-{parts}.json")


class PipelineTestCase(cli.CliTestCase):
    def setUp(self):
        super().setUp()
        self.write_recipe(PIPELINE)

    def arguments(self, values, *flags, command="train"):
        """With the cost table that fits, so that no run spends its time on measuring."""
        costs = {"plan.costs": costs_file(values.get("plan.micro_batches", 1))}
        settings = cli.settings({**costs, **values})
        return [command, "recipe.toml", "--json", *settings, *flags]

    def launch(self, launcher, ranks, arguments):
        if launcher == "threads":
            return cli.start(*arguments, cwd=self.folder)
        environment = {
            **os.environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        return subprocess.Popen(
            [MPIRUN, "--oversubscribe", "-n", str(ranks), cli.PROGRAM, *map(str, arguments)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )

    def run_ranks(self, launcher, ranks, arguments):
        return cli.finish(self.launch(launcher, ranks, arguments), [launcher, ranks, *arguments])

    def train_ranks(self, launcher, ranks, values, *flags):
        values = {"plan.pipeline": ranks, **values}
        result = self.run_ranks(launcher, ranks, self.arguments(values, *flags))
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.errors(), [], result)
        return result.json()

    def plan(self, values, *flags, code=0):
        result = self.run_program(*self.arguments(values, *flags, command="plan"))
        self.assertEqual(result.code, code, result)
        return result.json()

    def validations(self, run_folder):
        return [
            (entry["step"], entry["validation_loss"])
            for entry in cli.metrics(self.folder / run_folder)
            if "validation_loss" in entry
        ]

    def replay(self, program):
        command = [sys.executable, str(REPLAY_PROGRAM), str(self.folder / program)]
        return json.loads(subprocess.check_output(command))


class SameNumbers(PipelineTestCase):
    def one_rank(self, parts):
        out = f"one-rank-{parts}"
        if not (self.folder / out).exists():
            self.references[parts] = self.train_ranks(
                "threads", 1, {"plan.micro_batches": parts, "run.out": out}
            )
        return self.references[parts], self.validations(out)

    def check(self, launcher, ranks, values):
        expected, validations = self.one_rank(values["plan.micro_batches"])
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        found = self.train_ranks(launcher, ranks, values)
        self.assertEqual(len(found["rank_peak_bytes"]), ranks)
        self.assertEqual(found["losses"], expected["losses"])
        self.assertEqual(found["validation_loss"], expected["validation_loss"])
        self.assertEqual(self.validations("out"), validations)
        for name in ("model.safetensors", "optimizer.safetensors"):
            one_rank = f"one-rank-{values['plan.micro_batches']}"
            self.assert_same_file(f"out/step-00000010/{name}", f"{one_rank}/step-00000010/{name}")

    def setUp(self):
        super().setUp()
        self.references = {}

    def test_reference_learns_clips_and_validates(self):
        expected, validations = self.one_rank(3)
        self.assertEqual(len(expected["losses"]), 10)
        self.assertLess(expected["losses"][-1], expected["losses"][0] - 0.1)
        self.assertEqual([step for step, _ in validations], [5, 10])
        entries = cli.metrics(self.folder / "one-rank-3")
        norms = [entry["gradient_norm"] for entry in entries if "loss" in entry]
        self.assertTrue(any(norm > PIPELINE["train.clip"] for norm in norms), norms)
        self.assertNotEqual(self.one_rank(8)[0]["losses"], expected["losses"])

    def check_schedule(self, schedule):
        number = SCHEDULES.index(schedule)
        everything = bool(os.environ.get("PENSTOCK_FULL"))
        for (r, ranks), (l, launcher), (m, parts) in itertools.product(
            *map(enumerate, (RANKS, LAUNCHERS, MICRO_BATCHES))
        ):
            is_chosen = (number + r + l + m) % 3 == 0
            if (launcher == "mpi" and MPIRUN is None) or not (everything or is_chosen):
                continue
            with self.subTest(schedule=schedule, ranks=ranks, launcher=launcher, parts=parts):
                values = {"plan.schedule": schedule, "plan.micro_batches": parts}
                self.check(launcher, ranks, values)

    def test_gpipe(self):
        self.check_schedule("gpipe")

    def test_1f1b(self):
        self.check_schedule("1f1b")

    def test_interleaved(self):
        self.check_schedule("interleaved")

    def test_zb_h1(self):
        self.check_schedule("zb-h1")

    def test_zb_h2(self):
        self.check_schedule("zb-h2")

    def test_zb_v(self):
        self.check_schedule("zb-v")

    def test_a_head_of_its_own(self):
        untied = {"model.tied": False, "plan.micro_batches": 3}
        expected = self.train_ranks("threads", 1, {**untied, "run.out": "untied"})
        self.assertNotEqual(expected["losses"], self.one_rank(3)[0]["losses"])
        for schedule, ranks in (("1f1b", 2), ("zb-v", 2), ("zb-h1", 4)):
            with self.subTest(schedule=schedule, ranks=ranks):
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                found = self.train_ranks("threads", ranks, {**untied, "plan.schedule": schedule})
                self.assertEqual(found["losses"], expected["losses"])
                self.assertEqual(found["validation_loss"], expected["validation_loss"])
                for name in ("model.safetensors", "optimizer.safetensors"):
                    last = f"step-00000010/{name}"
                    self.assert_same_file(f"out/{last}", f"untied/{last}")

    def test_costs_that_are_measured_first(self):
        for launcher in LAUNCHERS[: 2 if MPIRUN else 1]:
            with self.subTest(launcher=launcher):
                self.check(launcher, 3, {"plan.micro_batches": 3, "plan.costs": ""})

    def test_cuts_at_the_ends(self):
        for cuts in ("1,2,3", "8,9,10", "1,5,10"):
            with self.subTest(cuts=cuts):
                values = {"plan.micro_batches": 3, "plan.schedule": "1f1b", "plan.cuts": cuts}
                self.check("threads", 4, values)


class Resume(PipelineTestCase):
    """A checkpoint does not know how many ranks wrote it."""

    def test_under_another_pipeline(self):
        parts = {"plan.micro_batches": 3}
        straight = self.train_ranks("threads", 1, {**parts, "run.out": "straight"})
        writer = "mpi" if MPIRUN else "threads"
        saved = {**parts, "plan.schedule": "zb-h1", "run.save_every": 5, "run.out": "saved"}
        whole = self.train_ranks(writer, 4, saved)
        self.assertEqual(whole["losses"], straight["losses"])
        half = "saved/step-00000005"
        self.assertEqual(cli.checkpoint_damage(self.folder / half, 5), "")
        readers = (
            ("threads", 1, {}),
            ("threads", 2, {"plan.schedule": "1f1b"}),
            ("threads", 3, {"plan.schedule": "gpipe"}),
            (writer, 2, {"plan.schedule": "interleaved"}),
        )
        for number, (launcher, ranks, values) in enumerate(readers):
            with self.subTest(launcher=launcher, ranks=ranks, **values):
                out = f"resumed-{number}"
                values = {**parts, **values, "run.out": out}
                resumed = self.train_ranks(launcher, ranks, values, "--resume", half)
                self.assertEqual(resumed["first_step"], 5)
                self.assertEqual(resumed["losses"], straight["losses"][5:])
                self.assertEqual(resumed["validation_loss"], straight["validation_loss"])
                for name in ("model.safetensors", "optimizer.safetensors"):
                    last = f"step-00000010/{name}"
                    self.assert_same_file(f"{out}/{last}", f"straight/{last}")


class Asynchronous(PipelineTestCase):
    """Schedules whose ranks move their weights while micro-batches are in flight. That the numbers
    are those of the definitions is for tests/run/asynchronous_test.cpp."""

    PARTS = 8
    STEP_FILES = ("model.safetensors", "optimizer.safetensors")

    def values(self, schedule, out, **more):
        return {
            "model.tied": False,
            "train.clip": 0,
            "plan.schedule": schedule,
            "plan.micro_batches": self.PARTS,
            "plan.flush_every": 4,
            "run.out": out,
            **{key.replace("__", "."): value for key, value in more.items()},
        }

    def assert_same_end(self, first, second, step):
        for name in self.STEP_FILES:
            last = f"step-{step:08d}/{name}"
            self.assert_same_file(f"{first}/{last}", f"{second}/{last}")

    @needs_mpi
    def test_processes_have_the_numbers_of_threads(self):
        for schedule, ranks in itertools.product(ASYNCHRONOUS, RANKS):
            with self.subTest(schedule=schedule, ranks=ranks):
                runs = [
                    self.train_ranks(launcher, ranks, self.values(schedule, f"{launcher}-{ranks}"))
                    for launcher in LAUNCHERS
                ]
                self.assertEqual(runs[0]["losses"], runs[1]["losses"])
                self.assertEqual(runs[0]["validation_loss"], runs[1]["validation_loss"])
                self.assert_same_end(f"threads-{ranks}", f"mpi-{ranks}", 10)

    def test_learns_other_numbers_than_one_that_is_drained(self):
        straight = self.train_ranks("threads", 4, self.values("1f1b", "straight"))["losses"]
        seen = [straight]
        for schedule in ASYNCHRONOUS:
            found = self.train_ranks("threads", 4, self.values(schedule, schedule))["losses"]
            self.assertEqual(found[0], straight[0])
            self.assertLess(found[-1], found[0] - 0.1)
            self.assertNotIn(found, seen)
            seen.append(found)

    def test_one_that_is_drained_in_every_step_is_1f1b(self):
        straight = self.train_ranks("threads", 2, self.values("1f1b", "straight"))
        cases = (
            ("pipedream", {"plan__flush_every": 1}),
            ("2bw", {"plan__sync_steps": 10}),
            ("pipemare", {"plan__flush_every": 1, "plan__anneal_steps": 0}),
        )
        for schedule, more in cases:
            with self.subTest(schedule=schedule):
                found = self.train_ranks("threads", 2, self.values(schedule, schedule, **more))
                self.assertEqual(found["losses"], straight["losses"])
                self.assert_same_end(schedule, "straight", 10)

    def test_resumes(self):
        for schedule in ASYNCHRONOUS:
            with self.subTest(schedule=schedule):
                more = {"train__steps": 20, "run__save_every": 8}
                whole = self.train_ranks(
                    "threads", 4, self.values(schedule, f"{schedule}-whole", **more)
                )
                self.assertEqual(
                    cli.checkpoint_steps(self.folder / f"{schedule}-whole"), [8, 16, 20]
                )
                resumed = self.train_ranks(
                    "threads",
                    4,
                    self.values(schedule, f"{schedule}-resumed", **more),
                    *("--resume", f"{schedule}-whole/step-00000008"),
                )
                self.assertEqual(resumed["first_step"], 8)
                self.assertEqual(resumed["losses"], whole["losses"][8:])
                self.assertEqual(resumed["validation_loss"], whole["validation_loss"])
                self.assert_same_end(f"{schedule}-resumed", f"{schedule}-whole", 20)

    def test_a_resumed_run_keeps_its_cuts(self):
        """They are part of the numbers, and would be chosen anew."""
        first = self.values("pipedream", "first", plan__cuts="2", run__save_every=4)
        whole = self.train_ranks("threads", 2, first)
        again = {**self.values("pipedream", "again"), "plan.cuts": ""}
        resumed = self.train_ranks("threads", 2, again, "--resume", "first/step-00000004")
        self.assertEqual(resumed["losses"], whole["losses"][4:])
        other = self.values("pipedream", "other", plan__cuts="7", plan__flush_every=2)
        result = self.run_program(
            *self.arguments({"plan.pipeline": 2, **other}), "--resume", "first/step-00000004"
        )
        self.assertEqual(result.code, 0, result)
        for key, now, before in (("cuts", '"7"', '"2"'), ("flush_every", "2", "4")):
            line = f"resuming with plan.{key} = {now}; the checkpoint was trained with {before}"
            self.assertIn(line, result.stderr)

    def test_simulate_and_plan_agree_on_a_step(self):
        values = {**self.values("2bw", "out"), "plan.pipeline": 4}
        planned = self.plan(values)
        found = self.run_program(*self.arguments(values, command="simulate")).json()
        self.assertEqual(found["updates"], 4)
        self.assertAlmostEqual(found["step"], planned["step_s"], delta=1e-9 * planned["step_s"])

    def test_flush_every_is_refused_where_it_means_nothing(self):
        values = {"plan.pipeline": 2, "plan.schedule": "1f1b"}
        for command in ("plan", "simulate"):
            result = self.run_program(
                *self.arguments(values, command=command), "--flush-every", "3"
            )
            self.assert_fails(result, '--flush-every is for asynchronous schedules, and "1f1b"')

    def test_saving_and_validating_wait_for_a_drained_pipeline(self):
        # Between steps 4 and 8 both fall due, and come after 8.
        plain = {"run__save_every": 0, "run__validate_every": 0}
        often = {"run__save_every": 5, "run__validate_every": 3}
        rare = self.train_ranks("threads", 2, self.values("pipedream", "rare", **plain))
        found = self.train_ranks("threads", 2, self.values("pipedream", "often", **often))
        self.assertEqual(found["losses"], rare["losses"])
        self.assertEqual(cli.checkpoint_steps(self.folder / "often"), [8, 10])
        self.assertEqual([step for step, _ in self.validations("often")], [4, 8, 10])
        self.assert_same_end("often", "rare", 10)
        steps = [step for step, _ in cli.metric_losses(self.folder / "often")]
        self.assertEqual(steps, list(range(1, 11)))

    def test_peaks_are_those_that_were_planned(self):
        for schedule in ASYNCHRONOUS:
            with self.subTest(schedule=schedule):
                values = self.values(schedule, schedule)
                planned = self.plan({**values, "plan.pipeline": 4})
                found = self.train_ranks("threads", 4, values)
                self.assertEqual(found["predicted_rank_peak_bytes"], planned["peak_bytes"])
                for measured, predicted in zip(found["rank_peak_bytes"], planned["peak_bytes"]):
                    self.assertLessEqual(measured, predicted)
                    self.assertGreater(measured, 0.97 * predicted)

    def test_limit(self):
        """Copies of the weights count; what is recomputed has the weights of its forward. The
        last segment and the first steps are shorter and have plans of their own."""
        for schedule in ("pipedream", "2bw"):
            with self.subTest(schedule=schedule):
                values = self.values(schedule, schedule, plan__sync_steps=1, plan__cuts="3,6,9")
                free = self.train_ranks("threads", 4, values)
                planned = {**values, "plan.pipeline": 4}
                least = max(
                    self.plan({**planned, "plan.memory": 1000}, code=1)["least_memory_bytes"]
                )
                self.assertLess(least, free["peak_bytes"])
                values["plan.memory"] = planned["plan.memory"] = least
                self.assertGreater(self.plan(planned)["recomputed_forwards"], 0)
                found = self.train_ranks("threads", 4, values)
                self.assertEqual(found["losses"], free["losses"])
                self.assertLessEqual(max(found["rank_peak_bytes"]), least)

    def test_bfloat16(self):
        for schedule in ASYNCHRONOUS:
            with self.subTest(schedule=schedule):
                more = {"train__precision": "bfloat16", "plan__costs": ""}
                found = self.train_ranks("threads", 2, self.values(schedule, schedule, **more))
                self.assertLess(found["losses"][-1], found["losses"][0] - 0.1)
                for measured, predicted in zip(
                    found["rank_peak_bytes"], found["predicted_rank_peak_bytes"]
                ):
                    self.assertLessEqual(measured, predicted)
                    self.assertGreater(measured, 0.97 * predicted)

    def test_plan_tells_delays_and_versions(self):
        values = {"plan.pipeline": 4, "plan.micro_batches": 1, "plan.flush_every": 8}
        planned = self.plan({**self.values("pipedream", "out"), **values})
        self.assertEqual(planned["flush_every"], 8)
        self.assertEqual(planned["delay"], [3, 2, 1, 0])
        self.assertEqual(planned["weight_versions"], [4, 3, 2, 1])

    def refused(self, schedule, **more):
        values = {"plan.pipeline": 4, **self.values(schedule, "out", **more)}
        lines = set()
        for command in ("train", "plan"):
            result = self.run_program(*self.arguments(values, command=command))
            lines.add(self.assert_fails(result, f'plan.schedule = "{schedule}"'))
        self.assertEqual(len(lines), 1, lines)
        self.assertFalse((self.folder / "out").exists())
        return lines.pop()

    def test_refusals(self):
        for schedule in ASYNCHRONOUS:
            with self.subTest(schedule=schedule):
                line = self.refused(schedule, train__clip=0.5)
                self.assertIn("set train.clip = 0", line)
                line = self.refused(schedule, model__tied=True)
                self.assertIn("set model.tied = false", line)
                line = self.refused(schedule, train__precision="float16", run__device="cuda")
                self.assertIn('try "bfloat16"', line)
                line = self.refused(schedule, plan__pipeline=1)
                self.assertIn("plan.pipeline is 1", line)
        line = self.refused("2bw", plan__micro_batches=3)
        self.assertIn("set plan.micro_batches to 4 or more", line)


class Memory(PipelineTestCase):
    """Under a limit that a rank meets only by recomputing."""

    PARTS = 8
    RANKS = 4

    def values(self, **more):
        return {
            "plan.micro_batches": self.PARTS,
            "plan.pipeline": self.RANKS,
            "plan.cuts": "3,6,9",
            "run.log": "none",
            **{f"plan.{key}": value for key, value in more.items()},
        }

    def limit(self, values):
        """A quarter of the way from what must be to what would be without a limit."""
        least = self.plan({**values, "plan.memory": 1000}, code=1)["least_memory_bytes"]
        free = self.plan({**values, "plan.recompute": "none"})["peak_bytes"]
        return max(least) + (max(free) - max(least)) // 4

    def one_rank(self):
        return self.train_ranks("threads", 1, {"plan.micro_batches": self.PARTS})["losses"]

    def check_table(self, schedule):
        """Planned from one table, every rank's bytes are known beforehand."""
        straight = self.one_rank()
        for recompute in ("rotor", "rotor-uniform"):
            with self.subTest(recompute=recompute):
                values = self.values(schedule=schedule, recompute=recompute)
                limit = values["plan.memory"] = self.limit(values)
                planned = self.plan(values)
                self.assertIs(planned["feasible"], True)
                self.assertGreater(planned["recomputed_forwards"], 0)
                self.assertLessEqual(max(planned["peak_bytes"]), limit)
                found = self.train_ranks("threads", self.RANKS, values)
                self.assertEqual(found["losses"], straight)
                self.assertLessEqual(max(found["rank_peak_bytes"]), limit)
                self.assertEqual(found["rank_peak_bytes"], planned["peak_bytes"])

    def test_gpipe(self):
        self.check_table("gpipe")

    def test_1f1b(self):
        self.check_table("1f1b")

    def test_zb_h1(self):
        self.check_table("zb-h1")

    def test_costs_that_are_measured_first(self):
        straight = self.one_rank()
        for schedule in ("gpipe", "1f1b", "zb-h1"):
            for recompute in ("rotor", "rotor-uniform"):
                with self.subTest(schedule=schedule, recompute=recompute):
                    values = self.values(schedule=schedule, recompute=recompute, costs="")
                    limit = values["plan.memory"] = self.limit(values)
                    found = self.train_ranks("threads", self.RANKS, values)
                    self.assertEqual(found["losses"], straight)
                    self.assertLessEqual(max(found["rank_peak_bytes"]), limit)
                    self.assertLessEqual(found["peak_bytes"], found["predicted_peak_bytes"])
                    self.assertGreater(found["peak_bytes"], 0.9 * found["predicted_peak_bytes"])

    def test_limit_that_fits_no_cut(self):
        for schedule in ("1f1b", "zb-h1", "auto"):
            with self.subTest(schedule=schedule):
                values = self.values(schedule=schedule, cuts="", memory=100_000)
                planned = self.plan(values, code=1)
                self.assertIs(planned["feasible"], False)
                self.assertEqual(len(planned["least_memory_bytes"]), self.RANKS)
                for least in planned["least_memory_bytes"]:
                    self.assertGreater(least, 0)
                self.assertGreater(max(planned["least_memory_bytes"]), 100_000)
                result = self.run_program(*self.arguments(values))
                self.assert_fails(result, "does not fit", code=1)

    def test_least_memory_is_enough(self):
        values = self.values(schedule="1f1b")
        least = max(self.plan({**values, "plan.memory": 100_000}, code=1)["least_memory_bytes"])
        self.assertTrue(self.plan({**values, "plan.memory": least})["feasible"])
        self.assertFalse(self.plan({**values, "plan.memory": least - 1}, code=1)["feasible"])
        found = self.train_ranks("threads", self.RANKS, {**values, "plan.memory": least})
        self.assertLessEqual(max(found["rank_peak_bytes"]), least)


class Check(PipelineTestCase):
    """That a difference is found and named is for tests/train/check_ranks_test.cpp."""

    PARTS = 3

    def values(self, **more):
        return {
            "plan.pipeline": 2,
            "plan.micro_batches": self.PARTS,
            **{f"plan.{key}": value for key, value in more.items()},
        }

    def check(self, values, *flags):
        result = self.run_program(*self.arguments(values, *flags, command="check"))
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.errors(), [], result)
        return result.json()

    def test_every_schedule(self):
        expected = self.train_ranks("threads", 1, {"plan.micro_batches": self.PARTS})["losses"]
        for schedule in SCHEDULES:
            with self.subTest(schedule=schedule):
                report = self.check(self.values(schedule=schedule))
                self.assertIs(report["equal"], True)
                self.assertIsNone(report["first_difference"])
                self.assertEqual(report["steps"], 3)
                self.assertGreater(report["tensors"], 3 * self.PARTS * 2 * (LAYERS - 1))
                self.assertEqual(report["loss"], expected[2])
                self.assertEqual(report["rank_peak_bytes"], report["predicted_rank_peak_bytes"])

    def test_limit(self):
        values = self.values(schedule="1f1b")
        least = max(self.plan({**values, "plan.memory": 1000}, code=1)["least_memory_bytes"])
        values["plan.memory"] = least
        self.assertGreater(self.plan(values)["recomputed_forwards"], 0)
        report = self.check(values, "--steps", 2)
        self.assertIs(report["equal"], True)
        self.assertEqual(report["steps"], 2)
        self.assertEqual(report["limit_bytes"], least)
        self.assertEqual(len(report["rank_peak_bytes"]), 2)
        self.assertEqual(report["peak_bytes"], max(report["rank_peak_bytes"]))
        self.assertLessEqual(report["peak_bytes"], least)
        self.assertLessEqual(report["predicted_peak_bytes"], least)
        values["plan.memory"] = least - 1
        result = self.run_program(*self.arguments(values, command="check"))
        self.assert_fails(result, "does not fit", code=1)

    def test_text(self):
        settings = cli.settings(self.values(costs=costs_file(self.PARTS)))
        result = self.run_program("check", "recipe.toml", *settings, "--program", "step.json")
        self.assertEqual(result.code, 0, result)
        self.assertIn("does not change a bit", result.stdout)
        self.assertIn("of 3 steps on 2 ranks equal those of one device", result.stdout)
        self.assertFalse((self.folder / "out").exists())
        self.assertEqual(len(self.replay("step.json")["peaks"]), 2)

    def test_interrupt(self):
        arguments = self.arguments(self.values(), "--steps", 1_000_000, command="check")
        process = self.launch("threads", 2, arguments)
        self.addCleanup(process.kill)
        self.assertTrue(any(line.startswith("check 1/") for line in process.stderr))
        process.send_signal(signal.SIGINT)
        result = cli.finish(process, arguments)
        line = self.assert_fails(result, "check was stopped by SIGINT", "nothing differs", code=1)
        self.assertRegex(line, r"after \d+ of 1000000 steps")

    def test_refusals(self):
        for schedule in ASYNCHRONOUS:
            values = {**self.values(schedule=schedule), "model.tied": False, "train.clip": 0}
            result = self.run_program(*self.arguments(values, command="check"))
            self.assert_fails(result, f'plan.schedule = "{schedule}"', "by design", "1f1b")

    @needs_mpi
    def test_launcher(self):
        result = self.run_ranks("mpi", 2, self.arguments(self.values(), command="check"))
        self.assertEqual(result.code, 2, result)
        self.assertEqual(result.stdout, "", result)
        self.assertEqual(len(set(result.errors())), 1, result)
        for needle in ("a launcher started 2 processes", "without the launcher"):
            self.assertIn(needle, result.errors()[0])


class Pictures(PipelineTestCase):
    """Measured beside predicted, of all ranks."""

    RANKS = 2
    FLAGS = ("--svg", "step.svg", "--html", "step.html", "--trace", "trace.json")

    def train(self, launcher, values, *flags):
        values = {"plan.pipeline": self.RANKS, "plan.micro_batches": 3, **values}
        arguments = self.arguments(values, *self.FLAGS, *flags)
        result = self.run_ranks(launcher, self.RANKS, arguments)
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.errors(), [], result)
        for text in (r"(step|\d updates), beginning to end", "rank 0", "rank 1"):
            self.assertRegex(result.stderr, f"(?m)^{text} .* \\d")
        return result.json()

    def page(self):
        page = (self.folder / "step.html").read_text()
        data = re.search(r'<script [^>]*"application/json"[^>]*>(.*?)</script>', page, re.S)
        return json.loads(data[1])

    def check_page(self):
        """A span for each instruction, at both ranks; the step ends with the last of them."""
        page = self.page()
        self.assertEqual(len(page["ranks"]), self.RANKS)
        ends, starts = [], []
        for rank in page["ranks"]:
            count = len(rank["instructions"]["op"])
            self.assertGreater(count, 0)
            measured = rank["sides"]["measured"]
            self.assertEqual(len(measured["start"]), count)
            self.assertEqual(len(measured["duration"]), count)
            self.assertEqual(len(measured["memory_at"]), 2 * count + 1)
            self.assertEqual(measured["start"], sorted(measured["start"]))
            self.assertLessEqual(measured["peak"], rank["sides"]["predicted"]["peak"])
            starts.append(measured["start"][0])
            ends.append(measured["start"][-1] + measured["duration"][-1])
        self.assertEqual(min(starts), 0)
        self.assertAlmostEqual(page["step"]["measured"], max(ends), delta=2)
        # No rank begins when another is done.
        self.assertLess(max(starts), min(ends))
        return page

    def check_svg(self):
        text = [
            "".join(element.itertext())
            for element in xml.etree.ElementTree.parse(self.folder / "step.svg").iter()
            if element.tag.endswith("}text")
        ]
        # Under the lane of each rank is that of its measured step; both say how much it is idle.
        for rank in range(self.RANKS):
            lane = re.compile(rf"rank {rank}( \(.* idle\))?$")
            at = next(i for i, one in enumerate(text) if lane.match(one))
            below = text[at + 1 :]
            ends = [i for i, one in enumerate(below) if one.startswith(("rank", "to rank"))]
            self.assertRegex("\n".join(below[: ends[0]]), r"(?m)^measured( \(.* idle\))?$")

    def check_trace(self, slack_us):
        """What is received was sent before: the ranks' records lie on one clock."""
        events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        expected = {f"rank {r} {s}" for r in range(self.RANKS) for s in ("predicted", "measured")}
        self.assertEqual(set(names.values()), expected)

        def spans(rank, kind):
            return [
                event
                for event in events
                if event.get("cat") == kind and names[event["pid"]] == f"rank {rank} measured"
            ]

        for sender in range(self.RANKS):
            sent, received = spans(sender, "send"), spans(1 - sender, "receive")
            self.assertEqual(len(sent), len(received))
            self.assertGreater(len(sent), 0)
            for one, other in zip(sent, received):
                self.assertGreaterEqual(other["ts"] + other["dur"], one["ts"] - slack_us)

    def test_threads(self):
        summary = self.train("threads", {"plan.schedule": "1f1b"})
        self.check_page()
        self.check_svg()
        self.check_trace(slack_us=0.01)
        # Every rank's record is that of the step of median length at rank 0, waiting included.
        self.assertGreater(self.page()["step"]["measured"], 0.3e9 * summary["step_seconds"])
        self.assertEqual(cli.temporaries(self.folder), [])

    @needs_mpi
    def test_mpi(self):
        self.train("mpi", {"plan.schedule": "zb-h1"})
        self.check_page()
        self.check_svg()
        # Clocks are compared by messages, which take a while when the machine is busy.
        self.check_trace(slack_us=10_000)

    def test_asynchronous(self):
        """As many steps as run at once are one picture: the most that did."""
        values = {"model.tied": False, "train.clip": 0, "plan.schedule": "pipedream"}
        drained = {"plan.flush_every": 4, "run.save_every": 8, "run.out": "out"}
        self.train("threads", {**values, **drained})
        self.assertEqual(self.check_page()["micro_batches"], 4 * 3)
        self.train("threads", {**values, **drained}, "--resume", "out/step-00000008")
        self.assertEqual(self.check_page()["micro_batches"], 2 * 3)
        self.train("threads", {**values, "plan.sync_steps": 10, "run.out": "synchronous"})
        self.assertEqual(self.check_page()["micro_batches"], 3)


class LongRun(PipelineTestCase):
    """A run that would take minutes, and something that happens to it."""

    PARTS = 3
    VALUES = {
        "plan.micro_batches": PARTS,
        "plan.schedule": "zb-h1",
        "plan.pipeline": 4,
        "train.steps": 20000,
        "run.save_every": 5,
        "run.validate_every": 0,
        "run.log_every": 1000,
        "run.timeout": 3,
    }

    def begin(self, launcher, values=None):
        process = self.launch(launcher, 4, self.arguments({**self.VALUES, **(values or {})}))
        self.addCleanup(self.end, process)
        deadline = time.monotonic() + cli.TIMEOUT_S
        while self.steps_done() < 6:
            if process.poll() is not None or time.monotonic() > deadline:
                self.fail(f"no sixth step: {cli.finish(process, timeout=1)}")
            time.sleep(0.02)
        return process

    def steps_done(self):
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "out/metrics.jsonl").read_text().count("\n")
        return 0

    def end(self, process):
        for rank in range(4):
            with contextlib.suppress(ProcessLookupError, LookupError):
                os.kill(self.pid_of_rank(rank), signal.SIGKILL)
        if process.poll() is None:
            process.kill()
        process.communicate()

    def pid_of_rank(self, rank):
        """The process in this test's folder that mpirun started as this rank."""
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdigit() or os.readlink(entry / "cwd") != str(self.folder):
                    continue
                variables = (entry / "environ").read_bytes().split(b"\0")
                if f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables:
                    return int(entry.name)
        raise LookupError(f"no process of rank {rank}")

    def assert_resumes(self, first_at_least=5):
        """The newest checkpoint is whole and training goes on from it, here on one rank."""
        steps = cli.checkpoint_steps(self.folder / "out")
        self.assertGreaterEqual(steps[-1], first_at_least)
        newest = self.folder / f"out/step-{steps[-1]:08d}"
        self.assertEqual(cli.checkpoint_damage(newest, steps[-1]), "")
        values = {
            "plan.micro_batches": self.PARTS,
            "train.steps": steps[-1] + 2,
            "run.validate_every": 0,
        }
        resumed = self.train_ranks("threads", 1, values, "--resume", "out")
        self.assertEqual(resumed["first_step"], steps[-1])
        self.assertEqual(len(resumed["losses"]), 2)


class RankThatIsGone(LongRun):
    def check(self, number, victim):
        process = self.begin("mpi")
        pid = self.pid_of_rank(victim)
        started = time.monotonic()
        os.kill(pid, number)
        result = cli.finish(process, timeout=60)
        seconds = time.monotonic() - started
        self.assertNotEqual(result.code, 0, result)
        self.assertLess(seconds, self.VALUES["run.timeout"] + 10, result)
        self.assertEqual(result.stdout, "", result)
        told = [line for line in result.errors() if f"for rank {victim}: " in line]
        self.assertTrue(told, result)
        for line in told:
            self.assertRegex(line, f"for rank {victim}: {WAITED_FOR}")
        with self.assertRaises(LookupError, msg="a rank outlives its job"):
            self.pid_of_rank(victim)
        self.assert_resumes()

    @needs_mpi
    def test_killed(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                self.check(signal.SIGKILL, victim)

    @needs_mpi
    def test_stopped(self):
        for victim in (0, 3):
            with self.subTest(victim=victim):
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                self.check(signal.SIGSTOP, victim)


class Interrupt(LongRun):
    def test_threads(self):
        process = self.begin("threads")
        process.send_signal(signal.SIGINT)
        stopped = cli.finish(process)
        self.assertEqual(stopped.code, 0, stopped)
        summary = stopped.json()
        done = len(summary["losses"])
        self.assertIs(summary["interrupted"], True)
        self.assertEqual(summary["checkpoint"], f"out/step-{done:08d}")
        self.assertIn("stopped by SIGINT", stopped.stderr)
        self.assertEqual(stopped.errors(), [])
        self.assertEqual(cli.checkpoint_steps(self.folder / "out")[-1], done)
        self.assertEqual(cli.temporaries(self.folder), [])
        self.assert_resumes(done)

    @needs_mpi
    def test_a_warning_leaves_time(self):
        """After SIGUSR1 ranks wait for each other as ever, here in steps of more than a second."""
        values = {"model.width": 256, "model.context": 128, "train.batch": 36, "run.save_every": 0, "run.timeout": 60, "plan.costs": ""}
        process = self.begin("mpi", values)
        for rank in range(4):
            os.kill(self.pid_of_rank(rank), signal.SIGUSR1)
        stopped = cli.finish(process)
        self.assertEqual(stopped.code, 0, stopped)
        self.assertIn("stopped by SIGUSR1; continue with: mpirun -n 4 ", stopped.stderr, stopped)
        self.assertEqual(stopped.errors(), [])
        self.assertEqual(cli.checkpoint_steps(self.folder / "out"), [len(stopped.json()["losses"])])

    @needs_mpi
    def test_mpi(self):
        # mpirun asks its ranks with SIGTERM and kills them a second later: time enough for a short
        # step and its save. The exit code is its own.
        process = self.begin("mpi", {"run.save_every": 0})
        process.send_signal(signal.SIGINT)
        stopped = cli.finish(process)
        self.assertNotEqual(stopped.code, 0, stopped)
        self.assertIn("stopped by SIGTERM", stopped.stderr, stopped)
        summary = stopped.json()
        done = len(summary["losses"])
        self.assertIs(summary["interrupted"], True)
        self.assertEqual(summary["checkpoint"], f"out/step-{done:08d}")
        self.assertEqual(cli.checkpoint_steps(self.folder / "out"), [done])
        self.assertEqual(cli.temporaries(self.folder), [])
        self.assert_resumes(done)


class BadInput(PipelineTestCase):
    def assert_refused(self, values, *needles, flags=(), code=2):
        before = cli.snapshot(self.folder)
        for command in ("train", "plan"):
            if command == "plan" and flags:
                continue
            result = self.run_program(*self.arguments(values, *flags, command=command))
            self.assert_fails(result, *needles, code=code)
        self.assertEqual(cli.snapshot(self.folder), before, "files changed")

    def test_more_stages_than_layers(self):
        needles = ("12 stages", "11 layers")
        self.assert_refused({"plan.pipeline": 12}, *needles)
        self.assert_refused({"plan.pipeline": 6, "plan.schedule": "zb-v"}, *needles)
        values = {"plan.pipeline": 4, "plan.schedule": "interleaved", "plan.chunks": 3}
        self.assert_refused(values, *needles)

    def test_cuts(self):
        cases = (
            ("5,3,8", ("3 comes after 5", "rise")),
            ("3,5,5", ("5 comes after 5", "rise")),
            ("0,3,5", ("0 is not between 1 and 10",)),
            ("3,5,11", ("11 is not between 1 and 10",)),
            ("3,-5,8", ("-5 is not between 1 and 10",)),
            ("3,5", ("4 stages need 3 cuts",)),
            ("3,5,7,9", ("4 stages need 3 cuts",)),
            ("3,five,8", ("plan.cuts", '"3,five,8"', "no list of layers", "6,12,18")),
            ("3,,8", ("plan.cuts", '"3,,8"', "no list of layers")),
            ("3,5,99999999999999999999", ("plan.cuts", "no list of layers")),
        )
        for cuts, needles in cases:
            with self.subTest(cuts=cuts):
                values = {"plan.pipeline": 4, "plan.schedule": "1f1b", "plan.cuts": cuts}
                self.assert_refused(values, "cuts", *needles)
        self.assert_refused({"plan.cuts": "3"}, "plan.cuts", "plan.pipeline is 1")

    def test_ranks_that_disagree_with_the_plan(self):
        needles = ("--ranks", "3 ranks", "--set plan.pipeline=3")
        flags = ("--ranks", "3")
        self.assert_refused({"plan.pipeline": 2}, "plan.pipeline = 2", *needles, flags=flags)

    @needs_mpi
    def test_launcher_that_disagrees_with_the_plan(self):
        result = self.run_ranks("mpi", 3, self.arguments({"plan.pipeline": 2}))
        self.assertEqual(result.code, 2, result)
        self.assertEqual(result.stdout, "", result)
        self.assertEqual(len(set(result.errors())), 1, result)
        for needle in ("launcher started 3 ranks", "plan.pipeline=3"):
            self.assertIn(needle, result.errors()[0])

    def test_costs_of_another_model(self):
        for key, value in (("model.layers", 3), ("model.layers", 7), ("model.width", 16)):
            with self.subTest(key=key, value=value):
                profiled = self.run_program(
                    *("profile", "recipe.toml", "--out", "costs.json"),
                    *cli.settings({key: value}),
                )
                self.assertEqual(profiled.code, 0, profiled)
                values = {"plan.pipeline": 2, "plan.costs": "costs.json"}
                self.assert_refused(values, "costs.json", "penstock profile")

    def test_recomputation_of_another_number_of_ranks(self):
        values = {"plan.pipeline": 2, "plan.recompute": "sqrt"}
        self.assert_refused(values, '"sqrt"', "plan.pipeline is 2", '"rotor-uniform"')
        values = {"plan.recompute": "rotor-uniform"}
        self.assert_refused(values, '"rotor-uniform"', "plan.pipeline is 1", '"rotor"')

    def test_graphs_of_a_pipeline(self):
        values = {"plan.pipeline": 2, "run.device": "cuda", "run.graphs": "on"}
        self.assert_refused(values, 'run.graphs = "on"', "plan.pipeline is 2", '"auto"')

    def test_unknown_schedule(self):
        values = {"plan.pipeline": 2, "plan.schedule": "zbv"}
        self.assert_refused(values, "plan.schedule", '"zbv"', '"zb-v"')


class BareNumbers(cli.CliTestCase):
    """Schedules of equal stages, by times alone."""

    TIMES = {
        "forward": 18.522,
        "backward-input": 18.086,
        "backward-weight": 9.337,
        "transfer": 0.601,
    }

    def simulate(self, times, *flags, schedule="zb-h1", ranks=8, parts=24):
        arguments = ["simulate", "--schedule", schedule, "--ranks", ranks, "--micro-batches", parts]
        for name, value in times.items():
            arguments += [f"--{name}", value]
        return self.run_program(*arguments, *flags, "--json")

    def test_published_times(self):
        result = self.simulate(self.TIMES)
        self.assertEqual(result.code, 0, result)
        answer = result.json()
        self.assertEqual(set(answer), {"step", "bubble", "in_flight"})
        self.assertAlmostEqual(answer["bubble"], 0.1585, delta=5e-5)
        self.assertAlmostEqual(answer["step"], 1310.405, places=6)
        self.assertEqual(answer["in_flight"], [8] * 8)

    def test_by_hand(self):
        # Filling and draining: (ranks - 1) forwards and backwards besides the rank's own.
        for schedule, in_flight in (("gpipe", [8, 8, 8, 8]), ("1f1b", [4, 3, 2, 1])):
            times = {"forward": 1, "backward": 2}
            answer = self.simulate(times, schedule=schedule, ranks=4, parts=8).json()
            self.assertEqual(answer["step"], (8 + 3) * 3)
            self.assertAlmostEqual(answer["bubble"], 3 / 11)
            self.assertEqual(answer["in_flight"], in_flight)

    def test_asynchronous(self):
        # Filled and drained once for 5 updates of 2 micro-batches.
        times = {"forward": 1, "backward": 2}
        answers = {
            schedule: self.simulate(
                times, "--flush-every", 5, schedule=schedule, ranks=4, parts=parts
            ).json()
            for schedule, parts in (("pipedream", 2), ("2bw", 4), ("pipemare", 2))
        }
        for schedule, parts in (("pipedream", 2), ("2bw", 4), ("pipemare", 2)):
            answer = answers[schedule]
            self.assertAlmostEqual(answer["step"], (5 * parts + 3) * 3 / 5)
            self.assertAlmostEqual(answer["bubble"], 3 / (5 * parts + 3))
            self.assertEqual(answer["in_flight"], [4, 3, 2, 1])
            self.assertEqual(answer["flush_every"], 5)
        self.assertEqual(answers["pipedream"]["delay"], [2, 1, 1, 0])
        self.assertEqual(answers["pipedream"]["weight_versions"], [3, 2, 2, 1])
        self.assertEqual(answers["2bw"]["delay"], [1, 1, 1, 1])
        self.assertEqual(answers["2bw"]["weight_versions"], [2, 2, 2, 2])
        self.assertEqual(answers["pipemare"]["delay"], [2, 1, 1, 0])
        self.assertEqual(answers["pipemare"]["weight_versions"], [1, 1, 1, 1])

    def test_drained_in_every_step(self):
        result = self.simulate(self.TIMES, "--flush-every", 4, schedule="gpipe")
        self.assert_fails(result, "--flush-every", "asynchronous", '"gpipe" is drained')

    def test_two_versions_for_too_few_micro_batches(self):
        result = self.simulate(self.TIMES, schedule="2bw", ranks=4, parts=3)
        self.assert_fails(result, "2bw", "4 ranks", "at least 4 micro-batches", "pipedream")

    def test_program_of_it(self):
        answer = self.simulate(self.TIMES, "--program", "bare.json", ranks=4, parts=8).json()
        command = [sys.executable, str(REPLAY_PROGRAM), str(self.folder / "bare.json")]
        replayed = json.loads(subprocess.check_output(command))
        self.assertAlmostEqual(replayed["seconds"], answer["step"], places=9)

    def test_missing_times(self):
        for missing in ("forward", "backward-input", "backward-weight"):
            with self.subTest(missing=missing):
                times = {name: time for name, time in self.TIMES.items() if name != missing}
                self.assert_fails(self.simulate(times), f"--{missing}")
        self.assert_fails(self.simulate({}), "--forward")

    def test_times_that_are_none(self):
        for value in ("-1", "soon", "nan"):
            with self.subTest(value=value):
                self.assert_fails(self.simulate({**self.TIMES, "forward": value}), "--forward")

    def test_both_kinds_of_backward(self):
        self.assert_fails(self.simulate({**self.TIMES, "backward": 3}), "--backward")

    def test_unknown_schedule_suggests_the_nearest(self):
        self.assert_fails(
            self.simulate(self.TIMES, schedule="zbh1"), '"zbh1"', "did you mean zb-h1?", "gpipe"
        )

    def test_missing_sizes(self):
        result = self.run_program("simulate", "--schedule", "1f1b", "--forward", 1, "--backward", 2)
        self.assert_fails(result, "--ranks", "--micro-batches")


def hand_table(splits):
    """Ten layers of different weight; with the seconds of split backwards, or of whole ones."""
    layers = []
    for i in range(10):
        backward_input, backward_weight = 0.002 + 0.001 * (i % 3), 0.003
        split = {"backward_input_s": backward_input, "backward_weight_s": backward_weight}
        whole = {"backward_s": backward_input + backward_weight}
        layers.append(
            {
                "name": f"layer {i}",
                "forward_s": 0.002 + 0.0005 * (i % 4),
                **(split if splits else whole),
                "input_bytes": 1000,
                "output_bytes": 1000,
                "saved_bytes": 5000 + 500 * (i % 3),
                "weight_state_bytes": 2500,
                "forward_extra_bytes": 700,
                "backward_extra_bytes": 300,
                "parameter_bytes": 400,
                "gradient_bytes": 400,
                "optimizer_bytes": 800,
            }
        )
    loss = {"extra_bytes": 900, "seconds": 0.001}
    return {"layers": layers, "loss": loss, "target_bytes": 100, "step_s": 0.001, "clear_s": 0.0005}


class Replay(PipelineTestCase):
    """A plan of a bare table, and what its program costs by the rules in docs/program.md."""

    RANKS = 4
    PARTS = 8

    def plan_table(self, file, schedule, *flags, recompute="rotor", name="program.json", code=0):
        result = self.run_program(
            *("plan", "--costs", file, "--pipeline", self.RANKS, "--micro-batches", self.PARTS),
            *("--schedule", schedule, "--recompute", recompute, "--json", *flags),
            *("--program", name),
        )
        self.assertEqual(result.code, code, result)
        return result.json()

    def assert_cuts(self, planned, layers):
        cuts = planned["cuts"]
        self.assertEqual(len(cuts), len(planned["rank_of_stage"]) - 1)
        self.assertEqual(cuts, sorted(set(cuts)))
        self.assertTrue(0 < cuts[0] and cuts[-1] < layers, cuts)
        self.assertEqual(set(planned["rank_of_stage"]), set(range(self.RANKS)))

    def assert_replays(self, planned, name="program.json"):
        replayed = self.replay(name)
        self.assertEqual(replayed["peaks"], planned["peak_bytes"])
        seconds = replayed["seconds"] / replayed["updates"]
        self.assertAlmostEqual(seconds, planned["step_s"], places=12)

    def assert_layers_complete(self, layers, name="program.json"):
        """Every layer runs forward and backward for every micro-batch, on one rank."""
        ranks = json.loads((self.folder / name).read_text())["ranks"]
        for backward in ({"backward", "backward-weight"}, {"backward", "backward-input"}):
            done = [
                (instruction["layer"], instruction["mb"])
                for rank in ranks
                for instruction in rank["instructions"]
                if instruction["op"] in backward
            ]
            expected = itertools.product(range(layers), range(self.PARTS))
            self.assertEqual(sorted(done), list(expected))

    def check(self, file, schedule, layers):
        free = self.plan_table(file, schedule, recompute="none", name="free.json")
        self.assert_cuts(free, layers)
        self.assert_replays(free, "free.json")
        for recompute in ("rotor", "rotor-uniform"):
            with self.subTest(file=file, schedule=schedule, recompute=recompute):
                least = self.plan_table(
                    file, schedule, "--memory", 1000, recompute=recompute, name="none.json", code=1
                )["least_memory_bytes"]
                limit = max(least) + (max(free["peak_bytes"]) - max(least)) // 4
                planned = self.plan_table(file, schedule, "--memory", limit, recompute=recompute)
                self.assertIs(planned["feasible"], True)
                self.assert_cuts(planned, layers)
                self.assertEqual(len(planned["peak_bytes"]), self.RANKS)
                self.assertLessEqual(max(planned["peak_bytes"]), limit)
                self.assert_replays(planned)
                self.assert_layers_complete(layers)

    def test_measured_table(self):
        for schedule in ("1f1b", "zb-h1"):
            self.check(costs_file(self.PARTS), schedule, LAYERS)

    def test_table_by_hand(self):
        for splits in (True, False):
            file = f"splits-{splits}.json"
            (self.folder / file).write_text(json.dumps(hand_table(splits)))
            for schedule in SCHEDULES:
                self.check(file, schedule, 10)

    def test_asynchronous_table(self):
        (self.folder / "table.json").write_text(json.dumps(hand_table(splits=False)))
        for schedule in ASYNCHRONOUS:
            with self.subTest(schedule=schedule):
                planned = self.plan_table(
                    "table.json", schedule, "--flush-every", 5, recompute="none"
                )
                self.assertEqual(planned["flush_every"], 5)
                self.assertEqual(self.replay("program.json")["updates"], 5)
                self.assert_replays(planned)

    def test_input_and_weight_gradient_add_up(self):
        steps = []
        for splits in (True, False):
            (self.folder / "table.json").write_text(json.dumps(hand_table(splits)))
            steps.append(self.plan_table("table.json", "1f1b", recompute="none")["step_s"])
        self.assertAlmostEqual(*steps, places=12)


# Only what holds the tests is a test itself.
del PipelineTestCase, LongRun

if __name__ == "__main__":
    cli.main()
