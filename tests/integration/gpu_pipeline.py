"""Pipelines on one GPU: ranks as threads and as processes of mpirun share it, and have the numbers of
one rank. For a machine with a GPU; skips itself elsewhere. Needs nothing but the program, and mpirun
with the MPI that it was built with for the part under MPI (the environment variable MPIRUN names
another than the first on the path).

    python3 tests/integration/gpu_pipeline.py --penstock build/cuda/app/penstock

With PENSTOCK_FULL=1 in the environment every schedule is tried with every number of ranks and both
launchers, else some of each.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import penstock_cli as cli

MPIRUN = os.environ.get("MPIRUN") or shutil.which("mpirun")
needs_mpi = unittest.skipIf(MPIRUN is None, "there is no mpirun")

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
SOME = {
    "threads": ((2, "1f1b"), (2, "zb-v"), (4, "gpipe"), (4, "interleaved"), (4, "zb-h1")),
    "mpi": ((2, "1f1b"), (4, "zb-v"), (4, "interleaved")),
}
# With a table of its own for the head, every sum has the order of one device. 11 layers, which no
# number of ranks divides.
PIPELINE = {
    "model.layers": 5,
    "model.width": 128,
    "model.context": 64,
    "model.tied": False,
    "train.steps": 6,
    "train.batch": 16,
    "train.clip": 1.0,
    "train.precision": "bfloat16",
    "plan.micro_batches": 8,
    "run.device": "cuda",
    "run.deterministic": True,
    "run.validate_every": 3,
    "run.validate_sequences": 10,
    "run.timeout": 60,
}
# Over a GiB at each rank, most of it activations: several times what the allocator's pages are.
LARGE = {
    "model.layers": 8,
    "model.width": 512,
    "model.heads": 8,
    "model.context": 256,
    "train.batch": 64,
    "train.steps": 3,
    "plan.micro_batches": 4,
    "plan.schedule": "gpipe",
}
PAGES = 96 << 20  # the allocator's, beside what plans count
TIMEOUT_S = 240

shared = None  # a cost table, measured once, so that not every run spends its time on it


def setUpModule():
    global shared
    shared = pathlib.Path(tempfile.mkdtemp(prefix="penstock-gpu-costs-"))
    unittest.addModuleCleanup(shutil.rmtree, shared, ignore_errors=True)
    cli.make_workspace(shared, PIPELINE)
    result = cli.run(
        *("profile", "recipe.toml", "--out", str(shared / "costs.json")),
        *cli.settings({"plan.pipeline": 2}),
        cwd=shared,
        timeout=TIMEOUT_S,
    )
    if any(words in result.stderr for words in ("no usable GPU", "built without CUDA")):
        raise unittest.SkipTest(result.errors()[-1])
    assert result.code == 0, result


def cases(launcher):
    if os.environ.get("PENSTOCK_FULL") == "1":
        return tuple((ranks, schedule) for ranks in (2, 4) for schedule in SCHEDULES)
    return SOME[launcher]


class GpuPipelines(cli.CliTestCase):
    def setUp(self):
        super().setUp()
        self.write_recipe(PIPELINE)

    def launch(self, launcher, ranks, values, *flags):
        settings = cli.settings({"plan.pipeline": ranks, **values})
        arguments = ["train", "recipe.toml", "--json", *settings, *flags]
        command = []
        if launcher == "mpi":
            command = [MPIRUN, "--oversubscribe", "-n", str(ranks)]
        environment = {
            **os.environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        process = subprocess.Popen(
            [*command, cli.PROGRAM, *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        return cli.finish(process, [launcher, ranks, *arguments], TIMEOUT_S)

    def train_ranks(self, launcher, ranks, values, *flags, measures=False):
        """With the cost table, unless this is one rank, which needs none, or is to measure."""
        if ranks > 1 and not measures:
            values = {"plan.costs": shared / "costs.json", **values}
        result = self.launch(launcher, ranks, values, *flags)
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.errors(), [], result)
        return result.json()

    def validations(self, folder):
        return [
            (entry["step"], entry["validation_loss"])
            for entry in cli.metrics(self.folder / folder)
            if "validation_loss" in entry
        ]

    def check_cases(self, launcher):
        expected = self.train_ranks("threads", 1, {"run.out": "alone"})
        for ranks, schedule in cases(launcher):
            with self.subTest(launcher=launcher, ranks=ranks, schedule=schedule):
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                found = self.train_ranks(launcher, ranks, {"plan.schedule": schedule})
                self.assertEqual(found["losses"], expected["losses"])
                self.assertEqual(found["validation_loss"], expected["validation_loss"])
                self.assertEqual(self.validations("out"), self.validations("alone"))
                self.assertEqual(len(found["rank_peak_bytes"]), ranks)
                for name in ("model.safetensors", "optimizer.safetensors"):
                    self.assert_same_file(
                        f"out/step-00000006/{name}", f"alone/step-00000006/{name}"
                    )

    def test_threads_have_the_bits_of_one_rank(self):
        self.check_cases("threads")

    @needs_mpi
    def test_processes_have_the_bits_of_one_rank(self):
        self.check_cases("mpi")

    def test_a_tied_table_gives_the_losses_of_one_rank(self):
        tied = {"model.tied": True, "train.precision": "float32"}
        expected = self.train_ranks("threads", 1, {**tied, "run.out": "alone"})
        for launcher in ("threads", "mpi") if MPIRUN else ("threads",):
            with self.subTest(launcher=launcher):
                found = self.train_ranks(launcher, 2, tied, measures=True)
                for ours, theirs in zip(found["losses"], expected["losses"], strict=True):
                    self.assertAlmostEqual(ours, theirs, delta=1e-5 * theirs)

    def test_gemms_that_are_timed_train_too(self):
        """Without run.deterministic each rank times its GEMMs for itself."""
        fast = {"run.deterministic": False}
        expected = self.train_ranks("threads", 1, {**fast, "run.out": "alone"})
        found = self.train_ranks("threads", 2, fast, measures=True)
        for ours, theirs in zip(found["losses"], expected["losses"], strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-2 * theirs)

    def test_a_run_resumes_with_another_cut(self):
        expected = self.train_ranks("threads", 1, {"run.out": "alone"})
        self.train_ranks("threads", 2, {"run.save_every": 3})
        resumed = self.train_ranks("threads", 4, {"run.out": "other"}, "--resume", "out/step-00000003")
        self.assertEqual(resumed["losses"], expected["losses"][3:])

    def test_every_rank_keeps_its_limit(self):
        """One that the plan without a limit breaks."""
        costs = self.folder / "large.json"
        profile = cli.run(
            *("profile", "recipe.toml", "--out", str(costs)),
            *cli.settings({**LARGE, "plan.pipeline": 2}),
            cwd=self.folder,
            timeout=TIMEOUT_S,
        )
        self.assertEqual(profile.code, 0, profile)
        large = {**LARGE, "plan.costs": costs}
        found = self.train_ranks("threads", 2, {**large, "run.out": "unlimited"})
        most = max(found["rank_peak_bytes"])
        limit = most * 7 // 10 + PAGES
        self.assertLess(limit, most)
        for launcher in ("threads", "mpi") if MPIRUN else ("threads",):
            with self.subTest(launcher=launcher):
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                limited = self.train_ranks(launcher, 2, {**large, "plan.memory": limit})
                self.assertEqual(limited["losses"], found["losses"])
                self.assertEqual(limited["limit_bytes"], limit)
                for peak in limited["rank_peak_bytes"]:
                    self.assertLessEqual(peak, limit)
                    self.assertGreater(peak, 0)

    def test_no_rank_holds_more_than_predicted(self):
        """Nor much less: what travels beside gradients and what libraries keep is counted."""

        def most_of(ranks, schedule, values):
            with self.subTest(ranks=ranks, schedule=schedule, **values):
                shutil.rmtree(self.folder / "out", ignore_errors=True)
                values = {**LARGE, "plan.schedule": schedule, **values}
                found = self.train_ranks("threads", ranks, values, measures=True)
                for peak, predicted in zip(
                    found["rank_peak_bytes"], found["predicted_rank_peak_bytes"], strict=True
                ):
                    self.assertLessEqual(peak, predicted)
                    self.assertGreater(peak, 0.995 * predicted)
                return max(found["rank_peak_bytes"])
            return None

        most_of(2, "1f1b", {})
        most_of(2, "zb-v", {"train.precision": "float32"})
        most_of(4, "interleaved", {"train.optimizer": "lamb"})
        most = most_of(2, "gpipe", {})
        if most is not None:  # else it has failed
            most_of(2, "gpipe", {"plan.memory": most * 7 // 10 + PAGES})

    def test_a_limit_that_no_plan_keeps_gets_an_answer(self):
        result = self.launch(
            "threads", 2, {"plan.costs": str(shared / "costs.json"), "plan.memory": "40MiB"}
        )
        self.assert_fails(result, "does not fit", code=1)

    def test_asynchronous_schedules_train(self):
        for schedule in ("pipedream", "2bw", "pipemare"):
            with self.subTest(schedule=schedule):
                found = self.train_ranks(
                    "threads", 2, {"plan.schedule": schedule, "train.clip": 0}
                )
                self.assertEqual(len(found["losses"]), 6)
                self.assertLess(found["losses"][-1], found["losses"][0])


if __name__ == "__main__":
    cli.main()
