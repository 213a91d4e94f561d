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


    def write_stub(self, name, *lines):
        program = self.folder / "programs" / name
        program.write_text("\n".join(["#!/bin/bash", *lines, ""]))
        program.chmod(0o755)


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
        self.write_stub("squeue")
        self.write_stub(
            "sbatch",
            "echo 'sbatch: the cluster is busy' >&2",
            "echo 'sbatch: error: no such partition' >&2",
            "exit 1",
        )
        self.assert_fails(self.submit(), "sbatch failed: sbatch: error: no such partition")

    def test_warnings_of_sbatch(self):
        self.write_stub("squeue")
        self.write_stub("sbatch", "echo 'sbatch: the queue is long' >&2", "echo '12;cluster'")
        result = self.submit()
        self.assertEqual((result.code, result.stdout), (0, "12\n"), result)
        self.assertIn("warning: sbatch: the queue is long", result.stderr)

    def test_folder_with_a_slash_at_its_end(self):
        script = self.script("--set", "run.out=runs/a/")
        folder = f"{self.folder.resolve()}/runs/a"
        for line in (
            "#SBATCH --job-name=a",
            f"#SBATCH --comment=penstock:{folder}",
            f"#SBATCH --output={folder}/logs/job-%j.txt",
        ):
            self.assertIn(f"\n{line}\n", script)

    def test_a_second_job_on_a_folder(self):
        self.write_stub("sbatch", "echo 12")
        self.write_stub(
            "squeue", f"echo '11|PENDING|2:00:00|Priority|penstock:{self.folder.resolve()}/runs/a'"
        )
        for out in ("runs/a", "runs/a/", "./runs//a/"):
            with self.subTest(out=out):
                self.assert_fails(
                    self.submit("--set", f"run.out={out}"), "job 11 (PENDING) already is for"
                )

    def test_a_folder_with_a_run(self):
        self.write_stub("squeue")
        self.write_stub("sbatch", "echo 12")
        self.train({"train.steps": 4})
        self.assert_fails(
            self.submit("--set", "train.steps=4"),
            "is at step 4 of train.steps = 4, so nothing is left to do",
        )
        result = self.submit("--set", "train.steps=5")
        self.assertEqual((result.code, result.stdout), (0, "12\n"), result)
        self.assertIn("goes on from step 4 of the run in ", result.stderr)

    def test_mpi_that_is_no_word(self):
        for word in ("pmix; reboot", "$(reboot)"):
            with self.subTest(word=word):
                self.assert_fails(self.submit("--dry-run", "--mpi", word), "--mpi", word)


class Script(ClusterTestCase):
    """What the batch script does after the ranks have ended, with an srun and an scontrol of the test's."""

    LATEST = 'ln -sfn step-00000005 "$run/latest"'

    def run_script(self, state, *lines, reason="SIGUSR1", code=0):
        """The script's exit code, what it says, and whether it has queued the job again."""
        (self.folder / "runs/a").mkdir(parents=True, exist_ok=True)
        (self.folder / "runs/a/latest").unlink(missing_ok=True)
        (self.folder / "runs/a/status.json").unlink(missing_ok=True)
        requeued = self.folder / "requeued"
        requeued.unlink(missing_ok=True)
        self.write_stub("scontrol", f'echo "$*" >{requeued}')
        status = json.dumps({"state": state, "reason": reason, "step": 5}, indent=2)
        self.write_stub(
            "srun",
            f"run={self.folder}/runs/a",
            f"cat >$run/status.json <<'END'\n{status}\nEND" if state else "",
            *lines,
            f"exit {code}",
        )
        made = self.run_without_slurm(
            "submit", "recipe.toml", "--hours", "2", "--dry-run", "--set", "run.out=runs/a"
        )
        self.assertEqual(made.code, 0, made)
        ended = subprocess.run(
            ["bash"],
            input=made.stdout,
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.folder}/programs:{os.environ['PATH']}",
                "SLURM_JOB_ID": "12",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=cli.TIMEOUT_S,
        )
        was_requeued = requeued.exists()
        if was_requeued:
            self.assertEqual(requeued.read_text(), "requeue 12\n")
        return ended.returncode, ended.stdout, was_requeued

    def check(self, ended, code, requeued, *words):
        self.assertEqual((ended[0], ended[2]), (code, requeued), ended)
        for needle in words:
            self.assertIn(needle, ended[1])

    def test_finished(self):
        ended = self.run_script("finished", self.LATEST, reason="")
        self.check(ended, 0, False, "job 12: penstock train ended with exit code 0, the run is fin")

    def test_interrupted(self):
        self.check(self.run_script("interrupted", self.LATEST), 0, True, "the run is interrupted")

    def test_interrupted_before_a_step_was_saved(self):
        self.check(
            self.run_script("interrupted"), 1, False, "no step was saved before the signal came"
        )

    def test_interrupted_by_its_own_hours(self):
        ended = self.run_script("interrupted", self.LATEST, reason="run.hours")
        self.check(ended, 0, False, "run.hours of the recipe are over", "sbatch ", "job.sbatch")

    def test_cancelled(self):
        words = "was cancelled, or its time ended before it had saved: not queued again "
        ended = self.run_script("interrupted", self.LATEST, "kill -TERM $PPID")
        self.check(ended, 0, False, words)
        killed = self.run_script("running", "kill -TERM $PPID", code=143)
        self.check(killed, 143, False, words)
        unsaved = self.run_script("running", "kill -TERM $PPID")
        self.check(unsaved, 1, False, words)

    def test_cancelled_after_its_last_step(self):
        ended = self.run_script("finished", self.LATEST, "kill -TERM $PPID")
        self.check(ended, 0, False, "the run is finished")
        self.assertNotIn("cancelled", ended[1])

    def test_failed(self):
        ended = self.run_script("failed", reason='"state": "finished" is a lie', code=3)
        self.check(ended, 3, False, "ended with exit code 3, the run is failed")

    def test_an_end_that_is_none(self):
        words = "neither finished nor been interrupted"
        self.check(self.run_script("running", self.LATEST), 1, False, words)
        self.check(self.run_script("", self.LATEST), 1, False, "the run is unknown", words)


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

    def test_names_of_any_bytes(self):
        run = os.fsencode(self.folder) + b"/runs/\xff\x1b[2J"
        os.mkdir(run)
        os.mkfifo(run + b"/metrics.jsonl")
        with open(run + b"/status.json", "w") as status:
            json.dump({"state": "finished"}, status)
        result = self.run_without_slurm("jobs", "--json")
        self.assertEqual(result.code, 0, result)
        self.assertIn("runs/\ufffd\x1b[2J", [row["run"] for row in json.loads(result.stdout)])
        self.assertNotIn("\x1b", self.run_without_slurm("jobs").stdout)

    def test_a_queue_that_does_not_answer(self):
        self.write_stub("squeue", "echo 'slurm_load_jobs error: no contact' >&2", "exit 1")
        result = self.run_without_slurm("jobs", "--json")
        self.assertEqual((result.code, len(json.loads(result.stdout))), (0, 2), result)
        self.assertIn("warning: squeue failed: slurm_load_jobs error: no contact", result.stderr)

    def test_no_runs(self):
        result = self.run_program(
            "jobs", cwd=self.folder / "programs", env={**os.environ, "PATH": ""}
        )
        self.assertEqual((result.code, result.stdout), (0, ""), result)
        self.assertIn("no jobs, and no runs below runs/", result.stderr)

    def test_folder_that_is_not_there(self):
        self.assert_fails(self.run_without_slurm("jobs", "none"), "there is no folder none")


class LocalSlurm(ClusterTestCase):
    def test_a_folder_with_something_else_in_it(self):
        (self.folder / "recipes").mkdir(mode=0o700)
        (self.folder / "recipes/a.toml").write_text("")
        for command in ("start", "stop"):
            with self.subTest(command=command):
                result = subprocess.run(
                    [cli.REPOSITORY / "tools/local-slurm", command, self.folder / "recipes"],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                self.assertEqual((result.returncode, result.stdout), (2, ""), result)
                self.assertIn("has files that are not of a cluster of local-slurm", result.stderr)
        self.assertEqual((self.folder / "recipes").stat().st_mode & 0o777, 0o700)
        self.assertEqual(os.listdir(self.folder / "recipes"), ["a.toml"])


if __name__ == "__main__":
    cli.main()
