"""penstock submit and penstock jobs where there is no Slurm; jobs of a real one are for test_slurm.py."""

import json
import os
import subprocess

import penstock_cli as cli


class ClusterTestCase(cli.CliTestCase):
    def setUp(self):
        super().setUp()
        (self.folder / "programs").mkdir()

    def run_without_slurm(self, *arguments):
        return self.run_program(
            *arguments, env={**os.environ, "PATH": str(self.folder / "programs")}
        )


class Submit(ClusterTestCase):
    def submit(self, *flags, hours="2"):
        return self.run_without_slurm("submit", "recipe.toml", "--hours", hours, *flags)

    def script(self, *flags, hours="2"):
        result = self.submit("--dry-run", *flags, hours=hours)
        self.assertEqual(result.code, 0, result)
        return result.stdout

    def test_dry_run_prints_a_script_and_does_nothing_else(self):
        before = cli.snapshot(self.folder)
        script = self.script(
            "--nodes", "2", "--tasks", "4", "--partition", "short", "--set", "run.out=runs/a"
        )
        self.assertEqual(cli.snapshot(self.folder), before)
        for line in (
            "#SBATCH --nodes=2",
            "#SBATCH --ntasks-per-node=4",
            "#SBATCH --cpus-per-task=1",  # the recipe's run.threads
            "#SBATCH --time=02:00:00",
            "#SBATCH --partition=short",
            f"#SBATCH --comment=penstock:{self.folder.resolve()}/runs/a",
        ):
            self.assertIn(f"\n{line}\n", script)
        self.assertIn(
            f"  {os.path.realpath(cli.PROGRAM)} train recipe.toml --set run.out=runs/a --resume auto\n",
            script,
        )
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)

    def test_a_task_for_each_gpu(self):
        script = self.script("--gpus", "4", "--set", "run.device=cuda")
        for line in ("#SBATCH --gpus-per-node=4", "#SBATCH --ntasks-per-node=4"):
            self.assertIn(f"\n{line}\n", script)

    def test_an_open_layout_takes_any_number_of_ranks(self):
        self.script("--nodes", "3", "--tasks", "2")
        self.script("--tasks", "4", "--set", "plan.pipeline=2")

    def test_no_sbatch(self):
        self.assert_fails(self.submit(), "there is no sbatch on PATH", "--dry-run")
        self.assertFalse((self.folder / "out").exists())

    def test_ranks_that_are_not_those_of_the_recipe(self):
        line = self.assert_fails(
            self.submit("--nodes", "2", "--tasks", "4", "--set", "plan.pipeline=3"),
            "the recipe has 3 ranks (plan.pipeline = 3, plan.data = 1)",
        )
        self.assertIn("the job has 8 (2 nodes with 4 tasks each)", line)

    def test_hours(self):
        for hours in ("0", "-1", "nan", "two", "1e9"):
            with self.subTest(hours=hours):
                result = self.run_without_slurm("submit", "recipe.toml", f"--hours={hours}")
                self.assert_fails(result, "--hours", hours)
        self.assert_fails(self.run_without_slurm("submit", "recipe.toml"), "--hours is required")

    def test_gpus_of_a_recipe_for_the_cpu(self):
        self.assert_fails(self.submit("--gpus", "2"), "--gpus 2 goes with run.device")

    def test_names_that_slurm_would_read_otherwise(self):
        self.assert_fails(self.submit("--set", "run.out=50%j"), "run.out", "50%j")
        self.assert_fails(self.submit("--name", 'a"b'), "--name")

    def test_recipe_that_is_wrong(self):
        self.assert_fails(self.submit("--set", "train.step=3"), "train.steps")

    def test_words_of_sbatch(self):
        for name, lines in (
            ("squeue", "exit 0"),
            ("sbatch", "echo 'sbatch: error: no such partition' >&2; exit 1"),
        ):
            program = self.folder / "programs" / name
            program.write_text(f"#!/bin/sh\n{lines}\n")
            program.chmod(0o755)
        self.assert_fails(self.submit(), "sbatch failed: sbatch: error: no such partition")


class Jobs(ClusterTestCase):
    def setUp(self):
        super().setUp()
        self.train({"run.out": "runs/b"})
        self.train({"run.out": "runs/a", "train.steps": 2})
        self.train({"run.out": "elsewhere", "train.steps": 3})

    def jobs(self, *arguments):
        result = self.run_without_slurm("jobs", "--json", *arguments)
        self.assertEqual(result.code, 0, result)
        return [(row["run"], row["job"], row["step"]) for row in json.loads(result.stdout)]

    def test_runs_below_runs(self):
        self.assertEqual(self.jobs(), [("runs/a", None, 2), ("runs/b", None, 6)])

    def test_folders_that_are_named(self):
        self.assertEqual(
            self.jobs("elsewhere", "runs/a/"), [("elsewhere", None, 3), ("runs/a/", None, 2)]
        )

    def test_table(self):
        result = self.run_without_slurm("jobs")
        self.assertEqual(result.code, 0, result)
        loss = cli.metric_losses(self.folder / "runs/a")[-1][1]
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 4, result)
        self.assertIn(f"{loss:.4f}", lines[2])

    def test_no_runs(self):
        result = self.run_program(
            "jobs", cwd=self.folder / "programs", env={**os.environ, "PATH": ""}
        )
        self.assertEqual((result.code, result.stdout), (0, ""), result)
        self.assertIn("no jobs, and no runs below runs/", result.stderr)

    def test_folder_that_is_not_there(self):
        self.assert_fails(self.run_without_slurm("jobs", "none"), "there is no folder none")


if __name__ == "__main__":
    cli.main()
