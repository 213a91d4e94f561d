"""Jobs of a real Slurm: a cluster of this one machine, which tools/local-slurm starts for these tests and stops
after them. Where Slurm is not installed they are skipped (exit code 77).
"""

import contextlib
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

import penstock_cli as cli

LOCAL_SLURM = cli.REPOSITORY / "tools" / "local-slurm"
SKIPPED = 77
# Several ranks find each other through PMIx, the one way that Debian's Open MPI has under srun.
MPI = "--mpi=pmix"
# A busy machine takes its time to start four processes with LibTorch.
JOB_TIMEOUT_S = 300
# All tests together, which ctest gives 1200 s: what is left after this is for ending jobs and the cluster.
ALL_TESTS_S = 1000
CANCEL_TIMEOUT_S = 90  # KillWait and more
deadline = time.monotonic() + ALL_TESTS_S

WARNING = "USR1"
MOST_MINUTES = 15  # of a job

MORE_STEPS = 20
POLL_S = 0.5

# States of a job that goes on, or will.
ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED")

RECIPE = {
    "model.layers": 5,
    "model.dropout": 0.1,
    "train.steps": 10,
    "train.batch": 24,
    "train.clip": 1.0,
    "train.schedule": "constant",  # so that the number of steps changes none of them
    "plan.micro_batches": 3,
    "plan.schedule": "1f1b",
    "run.validate_every": 0,
}
PIPELINE = {"plan.pipeline": 4}
# What is sharded, and how sums are made, decide in which order replicas add.
GRID = {
    "plan.pipeline": 2,
    "plan.data": 2,
    "plan.shard": "gradients",
    "plan.collectives": "direct",
}


def find_slurm():
    """What is missing; "" where there is all of it."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for name in ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol"):
        if shutil.which(name, path=path) is None:
            return name
    return ""


def seconds_left(wanted=JOB_TIMEOUT_S):
    return max(0, min(wanted, deadline - time.monotonic()))


# The end of its input is the end of this test's process, however that came about.
WATCHER = 'cat >/dev/null; [ ! -d "$2" ] || { "$1" stop "$2"; rm -rf "$2"; }'


def watch(folder):
    """Stops the cluster when this process is gone, also where ctest has killed it: ctest kills its children, too,
    so the watcher is none (setsid forks). Gives the pipe to close."""
    reader, writer = os.pipe()
    subprocess.run(
        ["setsid", "--fork", "bash", "-c", WATCHER, "watcher", LOCAL_SLURM, folder],
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    os.close(reader)
    return writer


def setUpModule():
    folder = tempfile.mkdtemp(prefix="penstock-slurm-")
    unittest.addModuleCleanup(os.close, watch(folder))
    unittest.addModuleCleanup(shutil.rmtree, folder, ignore_errors=True)
    unittest.addModuleCleanup(subprocess.run, [LOCAL_SLURM, "stop", folder], check=False)
    started = subprocess.run(
        [LOCAL_SLURM, "start", folder],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_SLURM_MINUTES": str(MOST_MINUTES)},
    )
    if started.returncode != 0:
        for log in ("slurmctld.log", "slurmd.log"):
            with contextlib.suppress(FileNotFoundError):
                sys.stderr.write(
                    "".join((pathlib.Path(folder) / log).read_text().splitlines(True)[-30:])
                )
        raise AssertionError("no cluster starts here")
    os.environ["SLURM_CONF"] = started.stdout.strip().split("SLURM_CONF=")[1]


def training_lines(launcher, arguments):
    """The lines of a batch script that train and, where the run has been interrupted, queue the job again. Each
    life of the job has a log of its own. The first would last for hours; one that goes on does MORE_STEPS.
    """
    log = "life-${SLURM_RESTART_COUNT:-0}.txt"
    resume = "--resume auto"
    was_interrupted = """grep -q '"state": *"interrupted"' out/status.json"""
    return [
        "trap : TERM USR1",  # this shell stays until the ranks have saved
        "steps=1000000",
        "latest=$(readlink out/latest)",
        f'[ -z "$latest" ] || steps=$((10#${{latest#step-}} + {MORE_STEPS}))',
        f"{launcher} {cli.PROGRAM} train recipe.toml {' '.join(arguments)} --set train.steps=$steps \\",
        f"  {resume} >{log} 2>&1",
        "code=$?",
        f"if [ $code -eq 0 ] && {was_interrupted}; then",
        "  exec scontrol requeue $SLURM_JOB_ID",
        "fi",
        "exit $code",
    ]


class SlurmTestCase(cli.CliTestCase):
    def setUp(self):
        super().setUp()
        self.assertGreater(seconds_left(), 0, f"the tests have taken {ALL_TESTS_S} s")
        self.write_recipe(RECIPE)
        self.addCleanup(self.cancel_all)

    def cancel_all(self):
        """Also of a test for which there is no time left."""
        subprocess.run(["scancel", "--user", str(os.getuid())], check=False)
        end = time.monotonic() + CANCEL_TIMEOUT_S
        while self.slurm("squeue", "--noheader"):
            self.assertLess(time.monotonic(), end, "cancelled jobs do not end")
            time.sleep(POLL_S)

    def slurm(self, *command):
        return subprocess.run(
            command, cwd=self.folder, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()

    def wait(self, is_so, what, seconds=JOB_TIMEOUT_S):
        end = time.monotonic() + seconds_left(seconds)
        while not is_so():
            self.assertLess(time.monotonic(), end, f"no end of waiting for {what}")
            time.sleep(POLL_S)

    def start_srun(self, ranks, values, *flags):
        command = ["srun", MPI, "-n", str(ranks), cli.PROGRAM, "train", "recipe.toml"]
        process = subprocess.Popen(
            [*command, *cli.settings(values), *flags],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def srun(self, ranks, values, *flags):
        process = self.start_srun(ranks, values, *flags)
        return cli.finish(process, ["srun", values, *flags], seconds_left())

    def recorded_steps(self, out="out"):
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / out / "metrics.jsonl").read_text().count('"loss"')
        return 0

    def wait_for_steps(self, process, count):
        self.wait(lambda: self.recorded_steps() >= count or process.poll() is not None, "steps")
        if process.poll() is not None:
            self.fail(f"ended: {cli.finish(process)}")

    def logs(self):
        """What jobs have said, those of penstock submit included."""
        return "\n".join(
            f"{path.name}:\n{path.read_text(errors='replace')}"
            for pattern in ("life-*.txt", "job.txt", "runs/a/logs/*.txt")
            for path in sorted(self.folder.glob(pattern))
        )

    def wait_for_steps_of_job(self, job, count, out="out"):
        def are_there():
            state = self.state(job)[0]  # asked first, so that the last steps of one that is gone are seen
            if self.recorded_steps(out) >= count:
                return True
            self.assertIn(state, ALIVE, f"job {job} is gone\n{self.logs()}")
            return False

        self.wait(are_there, "steps")

    def assert_same_weights(self, first, second, step):
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(
                f"{first}/step-{step:08d}/{name}", f"{second}/step-{step:08d}/{name}"
            )

    def state(self, job):
        shown = self.slurm("scontrol", "show", "job", job)
        return re.search(r"JobState=(\w+)", shown).group(1), int(
            re.search(r"Restarts=(\d+)", shown).group(1)
        )


class SameNumbers(SlurmTestCase):
    def check(self, layout):
        threads = self.train({**layout, "run.out": "threads"}, timeout=seconds_left())
        result = self.srun(4, {**layout, "run.out": "slurm"}, "--json")
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.errors(), [], result)
        self.assertEqual(result.json()["losses"], threads["losses"])
        self.assert_same_weights("slurm", "threads", 10)

    def test_pipeline(self):
        self.check(PIPELINE)

    def test_replicas_of_a_pipeline(self):
        self.check(GRID)


class Requeue(SlurmTestCase):
    """A job whose time is over before the run is."""

    def write_script(self, lines):
        script = self.folder / "job.sh"
        script.write_text("\n".join(["#!/bin/bash", *lines, ""]))
        return self.slurm("sbatch", "--parsable", str(script))

    def wait_until_done(self, job):
        self.wait(
            lambda: self.state(job)[0]
            in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"),
            "the end of the job",
            2 * JOB_TIMEOUT_S,
        )
        state, restarts = self.state(job)
        self.assertEqual(state, "COMPLETED", self.logs())
        return restarts

    def assert_went_on(self, values, restarts):
        """Interrupted and continued, with nothing of it in the numbers."""
        self.assertGreaterEqual(restarts, 1, self.logs())
        first = (self.folder / "life-0.txt").read_text()
        self.assertIn(f"stopped by SIG{WARNING}; continue with: ", first)
        steps = cli.checkpoint_steps(self.folder / "out")[-1]
        straight = self.train(
            {**values, "train.steps": steps, "run.out": "straight"}, timeout=seconds_left()
        )
        self.assertEqual(
            cli.metric_losses(self.folder / "out"), list(enumerate(straight["losses"], 1))
        )
        self.assert_same_weights("out", "straight", steps)

    def test_time_limit(self):
        """Slurm looks twice a minute, and warns where the next look would be too late: 20 seconds before the end
        of this job of a minute, or up to 30 earlier, so 10 to 40 seconds after its start, when the program
        listens."""
        flags = cli.settings({"run.log_every": 1000})
        lines = [
            "#SBATCH --ntasks=1 --time=1 --requeue --open-mode=append --output=job.txt",
            f"#SBATCH --signal={WARNING}@20",
            *training_lines("srun", flags),
        ]
        self.assert_went_on({}, self.wait_until_done(self.write_script(lines)))

    def test_four_ranks(self):
        flags = cli.settings({**GRID, "run.log_every": 1000})
        lines = ["#SBATCH --ntasks=4 --requeue --open-mode=append --output=job.txt"]
        job = self.write_script([*lines, *training_lines(f"srun {MPI}", flags)])
        self.wait_for_steps_of_job(job, 20)
        self.slurm("scancel", f"--signal={WARNING}", job)
        self.assert_went_on(GRID, self.wait_until_done(job))


class Submitted(SlurmTestCase):
    """What penstock submit makes of a run, and penstock jobs says of it."""

    FLAGS = (
        "--tasks",
        "4",
        "--hours",
        "0.1",
        "--set",
        "plan.pipeline=4",
        "--set",
        "run.out=runs/a",
    )

    def submit(self, steps):
        result = self.run_program(
            "submit", "recipe.toml", *self.FLAGS, "--set", f"train.steps={steps}"
        )
        self.assertEqual(result.code, 0, result)
        return result.stdout.strip()

    def row(self):
        result = self.run_program("jobs", "--json")
        self.assertEqual(result.code, 0, result)
        rows = json.loads(result.stdout)
        self.assertEqual(len(rows), 1, result)
        return rows[0]

    def wait_for_more_steps(self, count, job):
        self.wait_for_steps_of_job(job, self.recorded_steps("runs/a") + count, "runs/a")

    def test_a_run_in_three_lives(self):
        job = self.submit(1000000)
        self.wait_for_more_steps(20, job)
        row = self.row()
        self.assertEqual((row["job"], row["queue"], row["state"]), (job, "RUNNING", "running"))
        self.assertGreaterEqual(row["step"], 20)
        self.assertTrue(0 < row["left_seconds"] <= 360, row)

        again = self.run_program("submit", "recipe.toml", *self.FLAGS)
        self.assert_fails(again, f"job {job} (RUNNING) already is for", f"scancel {job}")

        self.slurm("scancel", f"--signal={WARNING}", job)
        self.wait(
            lambda: self.state(job) == ("RUNNING", 1), "the job to be queued again and to start"
        )
        self.wait_for_more_steps(20, job)

        self.slurm("scancel", job)
        self.wait(lambda: not self.slurm("squeue", "--noheader"), "the end of the cancelled job")
        self.assertEqual(self.state(job), ("CANCELLED", 1))
        row = self.row()
        self.assertEqual((row["job"], row["state"]), (None, "interrupted"))

        steps = cli.checkpoint_steps(self.folder / "runs/a")[-1] + MORE_STEPS
        last = self.submit(steps)
        self.wait(lambda: not self.slurm("squeue", "--noheader"), "the end of the run")
        logs = self.folder / "runs/a/logs"
        said = (logs / f"job-{last}.txt").read_text()
        self.assertEqual(self.state(last), ("COMPLETED", 0), said)
        self.assertIn("ended with exit code 0, the run is finished", said)
        self.assertIn("saved ", (logs / f"job-{last}-rank-0.txt").read_text())
        self.assertEqual((self.row()["state"], self.row()["step"]), ("finished", steps))

        # Each step once; that they are those of a run without interruptions is for Requeue.
        done = [step for step, _ in cli.metric_losses(self.folder / "runs/a")]
        self.assertEqual(done, list(range(1, steps + 1)))


class TaskThatIsGone(SlurmTestCase):
    def tasks(self):
        """{rank: process} of the tasks in this test's folder."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, StopIteration):
                if not entry.name.isdigit() or os.readlink(entry / "cwd") != str(self.folder):
                    continue
                variables = (entry / "environ").read_bytes().split(b"\0")
                rank = next(v for v in variables if v.startswith(b"SLURM_PROCID="))
                if (entry / "comm").read_text().startswith("penstock"):
                    found[int(rank.split(b"=")[1])] = int(entry.name)
        return found

    def check(self, number, victim, timeout, within):
        """With `timeout` as run.timeout, all is over `within` seconds."""
        values = {
            **PIPELINE,
            "train.steps": 20000,
            "run.save_every": 5,
            "run.timeout": timeout,
        }
        process = self.start_srun(4, {**values, "run.log_every": 1000})
        self.wait_for_steps(process, 6)
        os.kill(self.tasks()[victim], number)
        started = time.monotonic()
        result = cli.finish(process, timeout=seconds_left())
        self.assertLess(time.monotonic() - started, within, result)
        self.assertNotEqual(result.code, 0, result)
        self.wait(lambda: not self.tasks(), "the tasks to be gone", CANCEL_TIMEOUT_S)

        steps = cli.checkpoint_steps(self.folder / "out")
        for step in steps:
            self.assertEqual(cli.checkpoint_damage(self.folder / f"out/step-{step:08d}", step), "")
        rest = self.train({"train.steps": steps[-1] + 2}, "--resume", "out", timeout=seconds_left())
        self.assertEqual(rest["first_step"], steps[-1])
        return result

    def test_killed(self):
        """Slurm ends the others long before they would give up, with a line of its own: they have no time for
        theirs."""
        result = self.check(signal.SIGKILL, 2, timeout=60, within=60)
        self.assertRegex(result.stderr, r"srun: error: \S+ task 2: Killed")

    def test_stopped(self):
        """To Slurm all is well: it is the other ranks that give up."""
        # The time-out, Slurm's KillWait of 30 s, and the time that a busy machine takes.
        result = self.check(signal.SIGSTOP, 3, timeout=15, within=15 + 30 + 30)
        told = [line for line in result.errors() if "for rank 3: " in line]
        self.assertTrue(told, result)
        self.assertIn(f"has waited 15", told[0])


class OneFolder(SlurmTestCase):
    def test_a_second_job_is_refused(self):
        values = {"train.steps": 100000, "run.log_every": 1000}
        first = self.start_srun(1, values)
        self.wait_for_steps(first, 2)
        second = self.srun(1, values)
        told = [line for line in second.errors()]
        self.assertEqual(second.code, 2, second)
        self.assertEqual(len(told), 1, second)
        self.assertIn('run.out = "out" is in use by ', told[0])
        self.assertIsNone(first.poll())
        self.cancel_all()


if __name__ == "__main__":
    missing = find_slurm()
    if missing:
        print(
            f"skipped: Slurm is not installed here (no {missing}); tools/local-slurm start installs it"
        )
        sys.exit(SKIPPED)
    cli.main()
