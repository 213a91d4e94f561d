"""Ranks that are processes: what they send arrives, and when one of them fails, dies or stops, all end and say why."""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
import unittest

PROGRAM = None
LIMIT_S = 60  # for what must not hang


def mpirun(*arguments, ranks=4, **variables):
    command = ["mpirun", "-n", str(ranks), "--oversubscribe", PROGRAM, *arguments]
    allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Open MPI leaves memory behind at its end, which a build with sanitizers would count as ours.
    no_leaks = {"ASAN_OPTIONS": "detect_leaks=0"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe, env={**os.environ, **allow, **no_leaks, **variables})


class Mpi(unittest.TestCase):
    def finish(self, job):
        try:
            out, err = job.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            job.terminate()
            self.fail(f"the job hangs: {job.communicate()}")
        return out, [line for line in err.splitlines() if line.startswith("penstock: ")], err

    def test_traffic_arrives_as_it_was_sent(self):
        for ranks in (3, 4):
            job = mpirun("traffic", ranks=ranks)
            out, lines, err = self.finish(job)
            self.assertEqual(job.returncode, 0, err)
            content = [f"rank {rank} of {ranks} is content" for rank in range(ranks)]
            self.assertEqual(sorted(out.splitlines()), content, err)
            self.assertEqual(lines, [])

    def test_a_process_may_run_several_jobs_one_after_the_other(self):
        job = mpirun("traffic", "60", "3", ranks=3)
        out, lines, err = self.finish(job)
        self.assertEqual(job.returncode, 0, err)
        content = [f"rank {rank} of 3 is content" for rank in range(3) for _ in range(3)]
        self.assertEqual(sorted(out.splitlines()), content, err)
        self.assertEqual(lines, [])

    def test_collectives_give_the_sums_and_send_what_the_formulas_say(self):
        for ranks in (2, 3, 4, 5, 7, 8, 9):
            job = mpirun("collectives", ranks=ranks)
            out, lines, err = self.finish(job)
            self.assertEqual(job.returncode, 0, err)
            content = [f"rank {rank} of {ranks} is content" for rank in range(ranks)]
            self.assertEqual(sorted(out.splitlines()), content, err)
            self.assertEqual(lines, [])

    def test_all_goes_with_the_tags_that_every_library_has(self):
        for mode in ("traffic", "collectives", "threads"):
            job = mpirun(mode, PENSTOCK_MPI_TAGS="32767")
            _, lines, err = self.finish(job)
            self.assertEqual(job.returncode, 0, err)
            self.assertEqual(lines, [])

    def test_too_few_tags_are_said(self):
        job = mpirun("threads", PENSTOCK_MPI_TAGS="100")
        _, lines, err = self.finish(job)
        self.assertEqual(job.returncode, 2, err)
        self.assertTrue(any("the MPI library has tags up to 100, too few" in line for line in lines), err)

    def test_a_second_thread_of_each_rank_may_use_groups_of_its_own(self):
        job = mpirun("threads")
        out, lines, err = self.finish(job)
        self.assertEqual(job.returncode, 0, err)
        self.assertEqual(len(out.splitlines()), 4, err)
        self.assertEqual(lines, [])

    def test_a_rank_that_fails_ends_the_collective_that_the_others_are_in(self):
        for mode, waited_for in (("own_error", "the other ranks"), ("ring_error", r"rank \d")):
            job = mpirun(mode)
            _, lines, err = self.finish(job)
            self.assertEqual(job.returncode, 1, err)
            self.assertIn("penstock: no room for block 3", lines)
            for rank in (0, 1, 3):
                told = rf"penstock: rank 2 failed: no room for block 3 \(rank {rank} had waited \d\.\d s for {waited_for}: "
                told += r"the reduction of bucket 3\)"
                self.assertEqual(sum(bool(re.fullmatch(told, line)) for line in lines), 1, err)

    def test_a_collective_ends_at_the_time_out(self):
        for mode, waited_for in (("own_silence", "the other ranks"), ("direct_silence", "rank 2")):
            job = mpirun(mode, "1")
            out, lines, err = self.finish(job)
            self.assertEqual(job.returncode, 3, err)
            self.assertIn("caught a Timeout", out.splitlines(), err)
            told = rf"rank \d (has|had) waited 1\.\d s for {waited_for}: the reduction of bucket 3"
            self.assertTrue(any(re.search(told, line) for line in lines), err)

    def test_one_rank_is_a_plain_start(self):
        pipe = subprocess.PIPE
        plain = subprocess.Popen([PROGRAM, "traffic"], text=True, stdout=pipe, stderr=pipe)
        for job in (plain, mpirun("traffic", ranks=1)):
            out, _, err = self.finish(job)
            self.assertEqual((job.returncode, out), (0, "a plain start\n"), err)

    def test_a_message_of_another_size_is_an_error_that_names_both(self):
        job = mpirun("wrong_size")
        _, lines, err = self.finish(job)
        self.assertEqual(job.returncode, 3, err)
        self.assertIn("penstock: rank 1 expected a message of 40 bytes, but rank 0 sent 44: block 3", lines)

    def test_an_error_of_one_rank_ends_all_with_its_line_and_exit_code(self):
        job = mpirun("error")
        _, lines, err = self.finish(job)
        self.assertEqual(job.returncode, 1, err)
        self.assertEqual(len(lines), 4, err)
        self.assertIn("penstock: no room for block 3", lines)
        for rank in (0, 1, 3):
            start = f"penstock: rank 2 failed: no room for block 3 (rank {rank} "
            self.assertEqual(sum(line.startswith(start) for line in lines), 1, err)

    def test_errors_keep_their_type_their_line_and_their_exit_code(self):
        # ConfigError and PeerError
        job = mpirun("refusal")
        out, lines, err = self.finish(job)
        self.assertEqual(job.returncode, 2, err)
        self.assertEqual(sorted(out.splitlines()), ["caught a ConfigError"] + 3 * ["caught a PeerError"], err)
        self.assertIn("penstock: plan.pipeline = 9 is too many", lines)
        start = "penstock: rank 2 failed: plan.pipeline = 9 is too many (rank "
        self.assertEqual(sum(line.startswith(start) for line in lines), 3, err)
        # PeerError and Timeout
        job = mpirun("silence", "1", ranks=2)
        out, lines, err = self.finish(job)
        self.assertEqual(job.returncode, 3, err)
        self.assertEqual(sorted(out.splitlines()), ["caught a PeerError", "caught a Timeout"], err)
        said = r"penstock: rank 0 has waited 1\.\d s for rank 1: a word"
        heard = said + r" \(rank 1 had waited 0\.\d s for rank 0: a word\)"
        for pattern in (said, heard):
            self.assertEqual(sum(bool(re.fullmatch(pattern, line)) for line in lines), 1, err)

    def start_ring(self, timeout_s, mode="ring"):
        """A job that runs until it is stopped, and the process of each rank."""
        job = mpirun(mode, str(timeout_s))
        processes = {}
        is_turning = False
        while not is_turning or len(processes) < 4:  # the order of ranks' lines is left to chance
            line = job.stdout.readline()
            self.assertNotEqual(line, "", "ended by itself")
            is_turning = is_turning or line == "the ring turns\n"
            if found := re.fullmatch(r"rank (\d) is process (\d+)\n", line):
                processes[int(found[1])] = int(found[2])
        return job, processes

    def check_all_gone(self, processes):
        deadline = time.monotonic() + 5
        left = list(processes.values())
        while left and time.monotonic() < deadline:
            left = [process for process in left if os.path.exists(f"/proc/{process}")]
            time.sleep(0.05)
        self.assertEqual(left, [], "still there")

    def test_when_a_rank_is_killed_the_others_say_what_they_waited_for(self):
        job, processes = self.start_ring(60)
        start = time.monotonic()
        os.kill(processes[2], signal.SIGKILL)
        _, lines, err = self.finish(job)
        self.assertLess(time.monotonic() - start, 10)
        self.assertNotEqual(job.returncode, 0, err)
        self.check_all_gone(processes)
        self.assertEqual(len(lines), 3, err)
        for rank, peer in ((3, 2), (0, 3), (1, 0)):
            told = rf"penstock: rank {rank} was stopped by SIGTERM while waiting \d\.\d s for rank {peer}: "
            self.assertTrue(any(re.match(told + r"the value of step \d+$", line) for line in lines), err)

    def test_when_a_rank_is_killed_within_a_collective_the_others_say_so(self):
        job, processes = self.start_ring(60, "sums")
        os.kill(processes[2], signal.SIGKILL)
        _, lines, err = self.finish(job)
        self.assertNotEqual(job.returncode, 0, err)
        self.check_all_gone(processes)
        self.assertEqual(len(lines), 3, err)
        for rank in (0, 1, 3):
            told = rf"penstock: rank {rank} was stopped by SIGTERM while waiting \d\.\d s for the other ranks: the sum of step \d+"
            self.assertEqual(sum(bool(re.fullmatch(told, line)) for line in lines), 1, err)

    def test_when_a_rank_hangs_all_end_at_the_time_out_and_name_it(self):
        job, processes = self.start_ring(2)
        start = time.monotonic()
        os.kill(processes[2], signal.SIGSTOP)
        _, lines, err = self.finish(job)
        self.assertLess(time.monotonic() - start, 12)
        self.assertNotEqual(job.returncode, 0, err)
        self.check_all_gone(processes)
        # All wait in a circle, and the first to lose patience tells the others; each says its own wait.
        self.assertGreaterEqual(len(lines), 3, err)
        for rank, peer in ((3, 2), (0, 3), (1, 0)):
            pattern = rf"rank {rank} (has|had) waited 2\.\d s for rank {peer}: the value of step \d+"
            self.assertTrue(any(re.search(pattern, line) for line in lines), err)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    options, rest = parser.parse_known_args()
    PROGRAM = options.program
    unittest.main(argv=[sys.argv[0], *rest])
