"""Builds two commits, trains a table of small cases with both, and says what they do differently.

Compared are, exactly as printed: the loss, gradient norm and bytes sent of every step, validation losses, every tensor
of the last checkpoint (weights and optimizer state), its counts, the predicted and measured peak of every rank, and the
predicted seconds of a step. Cases marked as timed are run again in turns: base, head, base, head, ...

Plans are pinned: cuts, schedules and shards are given, both programs plan with the cost tables and limits that base has
found, and their seconds are fixed. Only the standard library is needed. The table of cases: bench/compare_cases.py.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import compare_cases

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT_S = 180
TIMED_STEPS = 60
BENCHES = ("penstock_bench_step", "penstock_bench_recompute")


class CannotCompare(Exception):
    """Neither equal nor different: base, or the harness, has failed."""


class BadArguments(Exception):
    pass


def say(*words):
    print("compare:", *words, file=sys.stderr, flush=True)


# Building


@dataclasses.dataclass
class Side:
    role: str  # "base" or "head"
    title: str  # of the commit, for people
    program: pathlib.Path
    benches: dict  # name -> program; without those that the commit cannot build


def git(*words):
    result = subprocess.run(["git", "-C", REPOSITORY, *words], capture_output=True, text=True)
    if result.returncode != 0:
        raise BadArguments(f"git {' '.join(words)}: {result.stderr.strip()}")
    return result.stdout.strip()


def checkout(revision):
    """The folder of a commit, made once and kept under build/, and the short name of the commit."""
    name = git("rev-parse", "--short=10", "--verify", f"{revision}^{{commit}}")
    folder = REPOSITORY / "build" / "compare" / name
    if not (folder / ".git").exists():
        # --force: git still knows the folder where `make clean` has removed it.
        git("worktree", "add", "--force", "--detach", str(folder), name)
    return folder, name


def run_cmake(folder, *words):
    ccache = {"CCACHE_SLOPPINESS": "pch_defines,time_macros"}  # else it gives nothing with a precompiled header
    if folder != REPOSITORY:
        ccache |= {"CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1"}  # one commit's objects serve the next
    environment = {**ccache, **os.environ}
    return subprocess.run(["cmake", *words], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)


def build(folder, title, targets):
    """What went wrong, or nothing."""
    if not (folder / "build/release/build.ninja").exists():
        configured = run_cmake(folder, "--preset", "release")
        if configured.returncode != 0:
            return configured.stdout
    say(f"building {' '.join(targets)} of {title}")
    built = run_cmake(folder, "--build", "--preset", "release", "--target", *targets)
    return "" if built.returncode == 0 else built.stdout


def make_side(role, revision, kept):
    """Programs are copied: a build that goes on meanwhile changes nothing."""
    place = kept / role
    place.mkdir()
    if pathlib.Path(revision).is_file():
        return Side(role, f"the program {revision}", pathlib.Path(shutil.copy(revision, place)), {})
    if revision == "work":
        folder, title = REPOSITORY, f"the working tree on {git('rev-parse', '--short=10', 'HEAD')}"
    else:
        folder, title = checkout(revision)
    problem = build(folder, title, ["penstock"])
    if problem:
        raise BadArguments(f"{title} does not build:\n{problem[-3000:]}")
    has_benches = not build(folder, title, BENCHES)
    if not has_benches:
        say(f"the benches of {title} do not build; its steps are timed by penstock train alone")
    output = folder / "build/release"
    benches = {name: shutil.copy(output / "bench" / name, place) for name in BENCHES if has_benches}
    return Side(role, title, pathlib.Path(shutil.copy(output / "app/penstock", place)), benches)


# Running


def as_flags(settings):
    flags = []
    for key, value in settings.items():
        flags += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    return flags


def run(program, *words, cwd):
    """Exit code, standard output, standard error."""
    try:
        done = subprocess.run([program, *map(str, words)], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, "", f"no end after {TIMEOUT_S} s"
    return done.returncode, done.stdout, done.stderr


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "without a word"


# Not measured: whatever replicas are planned with, it must be the same for both.
LINKS = {"ranks": 4, "algorithms": {"direct": {"latency_s": 1e-5, "bytes_per_s": 1e10}}}


class Workspace:
    """A folder with the text to train on, a recipe that has nothing but that, and what base has measured."""

    def __init__(self, folder, base):
        self.folder = folder
        self.base = base
        # Of this checkout, so that the text is the same for all commits.
        shutil.copy(REPOSITORY / "LICENSE", folder / "corpus.txt")
        (folder / "recipe.toml").write_text(f'[data]\npath = "{folder / "corpus.txt"}"\n')
        (folder / "links.json").write_text(json.dumps(LINKS))
        self.tables = {}  # what a table depends on -> its file

    def ask_base(self, command, settings, *words, accepted=(0,)):
        code, out, errors = run(self.base.program, command, "recipe.toml", *as_flags(settings), *words, cwd=self.folder)
        if code not in accepted:
            raise CannotCompare(f"base cannot {command}: {last_line(errors)}")
        return out

    def measure_tables(self, cases, pool):
        """One for all cases whose layers and optimizer cost the same."""
        examples = {table_key(case.all_settings()): case for case in cases}

        def measure(numbered):
            number, case = numbered
            file = self.folder / f"costs-{number}.json"
            with contextlib.suppress(CannotCompare):  # the case will say so
                table = json.loads(self.ask_base("profile", case.all_settings(), "--json"))
                file.write_text(json.dumps(with_fixed_seconds(table)))
            return file

        self.tables = dict(zip(examples, pool.map(measure, enumerate(examples.values()))))

    def pinned(self, case):
        """All settings of a case, with its cost table and limit."""
        settings = case.all_settings()
        settings["plan.costs"] = self.tables[table_key(settings)]
        if settings.get("plan.data", 1) > 1:
            settings["plan.links"] = self.folder / "links.json"
        if case.limit is not None:
            settings["plan.memory"] = self.limit_bytes(settings, case.limit)
        return settings

    def limit_bytes(self, settings, share):
        free = json.loads(self.ask_base("plan", settings, "--json"))
        # Exit code 1: does not fit, which is the question.
        tight = json.loads(self.ask_base("plan", settings | {"plan.memory": 1}, "--json", accepted=(1,)))
        most, least = largest(free["peak_bytes"]), largest(tight["least_memory_bytes"])
        limit = least + round(share * (most - least))
        if limit >= most:
            raise CannotCompare(f"a limit of {limit} bytes forces nothing: without one, {most} are held")
        return limit


# By the names that they have in a cost table.
SECONDS = {"forward_s": 1e-4, "keeping_forward_s": 1e-4, "recompute_s": 1e-4, "backward_s": 2e-4,
           "backward_input_s": 1e-4, "backward_weight_s": 1e-4, "seconds": 1e-4, "clear_s": 1e-5, "step_s": 1e-4}


def with_fixed_seconds(node, mode=0):
    """A cost table with the bytes that were measured, and seconds that make the same plan whenever that was. A save
    mode that holds less has a longer backward."""
    if not isinstance(node, dict):
        return node
    fixed = {key: SECONDS.get(key, value) for key, value in node.items()}
    if mode > 0:
        fixed["backward_s"] += 2e-5 * mode
    fixed["layers"] = [with_fixed_seconds(layer) for layer in node.get("layers", [])]
    for others in ("other_save_modes", "other_ways"):  # the latter in tables of earlier commits
        fixed[others] = [with_fixed_seconds(other, i) for i, other in enumerate(node.get(others, []), start=1)]
    fixed["loss"] = with_fixed_seconds(node.get("loss"))
    return {key: value for key, value in fixed.items() if key in node}


def table_key(settings):
    """What decides what layers and the optimizer's step take; a table of several ranks is measured in another way."""
    named = ("train.optimizer", "train.precision", "train.clip", "train.momentum")
    decisive = {key: value for key, value in settings.items() if key.startswith("model.") or key in named}
    decisive["size"] = compare_cases.micro_batch_size(settings)
    decisive["is of several ranks"] = compare_cases.num_ranks(settings) > 1
    return json.dumps(decisive, sort_keys=True)


def largest(value):
    return max(value) if isinstance(value, list) else value


# What a run has done, as {what: text}, in the order in which it happened


def read_numbers(text):
    """Numbers stay as they are printed. The program prints the shortest digits that give the same double again."""
    return json.loads(text, parse_float=str, parse_int=str)


def step_facts(run_folder):
    """Line by line of metrics.jsonl, but for seconds."""
    facts = {}
    for line in (run_folder / "metrics.jsonl").read_text().splitlines():
        entry = read_numbers(line)
        for key in ("loss", "validation_loss", "gradient_norm", "lr", "sent_bytes"):
            if key in entry:
                facts[f"{key} of step {entry['step']}"] = entry[key]
    return facts


def tensor_facts(file, title):
    """Name, type, shape and bytes of each tensor. Where they lie in the file, and its metadata, do not count."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    facts = {}
    for name, tensor in sorted(header.items()):
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in tensor["data_offsets"])
            digest = hashlib.sha256(content[begin:end]).hexdigest()[:16]
            facts[f"{title} {name}"] = f"{tensor['dtype']} {tensor['shape']} {digest}"
    return facts


def flatten(value, name):
    if isinstance(value, dict):
        return {key: text for part, inner in value.items() for key, text in flatten(inner, f"{name}.{part}").items()}
    return {name: value}


def checkpoint_facts(checkpoint):
    return {
        **tensor_facts(checkpoint / "model.safetensors", "weights"),
        **tensor_facts(checkpoint / "optimizer.safetensors", "state"),
        **flatten(read_numbers((checkpoint / "state.json").read_text()), "state.json"),
    }


def summary_facts(summary, settings):
    """Of what --json prints. Seconds that are predicted depend on the plan and its table alone, so they count."""
    facts = {key: summary.get(key) for key in ("steps", "first_step", "validation_loss", "parameters", "sent_bytes")}
    is_pinned = not compare_cases.is_planned_by_measurement(settings)
    if is_pinned or "plan.memory" not in settings:  # under a limit, another plan holds other bytes
        for key, title in (("predicted_rank_peak_bytes", "predicted"), ("rank_peak_bytes", "measured")):
            for rank, peak in enumerate(summary.get(key) or []):
                facts[f"{title} peak of rank {rank}"] = peak
    if is_pinned:
        facts["predicted_step_seconds"] = summary.get("predicted_step_seconds")
    return facts


class Failed(Exception):
    """A program has ended with an error."""


def train(side, folder, out, settings, *words):
    """One run, to its end, and the facts of it."""
    code, printed, errors = run(side.program, "train", folder.parent / "recipe.toml", "--json",
                                *as_flags(settings | {"run.out": out}), *words, cwd=folder)
    if code != 0:
        raise Failed(last_line(errors))
    summary = read_numbers(printed)
    return {
        **step_facts(folder / out),
        **checkpoint_facts(folder / summary["checkpoint"]),
        **summary_facts(summary, settings),
    }


def first_checkpoint(run_folder, settings):
    steps = sorted(run_folder.glob("step-*"))
    if len(steps) < 2:
        raise CannotCompare(f"no checkpoint before that of step {settings['train.steps']} to resume from")
    return steps[0]


def facts_of(side, case, folder, settings):
    """Of all runs that the case has."""
    if case.kind == "train":
        return train(side, folder, side.role, settings)
    settings = settings | {"run.keep": 0}
    writer = side.role if case.kind == "resume" else "base"
    facts = {}
    if writer == side.role:
        straight = train(side, folder, f"{writer}-straight", settings)
        if case.kind == "resume":
            facts = {f"uninterrupted: {what}": text for what, text in straight.items()}
    start = first_checkpoint(folder / f"{writer}-straight", settings)
    resumed = train(side, folder, f"{side.role}-resumed", settings, "--resume", start)
    return facts | {f"resumed: {what}": text for what, text in resumed.items()}


# Comparing


@dataclasses.dataclass
class Verdict:
    name: str
    result: str  # "equal", "differs" or "error"
    text: str
    differences: list  # of {"what", "base", "head"}
    num_values: int = 0


def differences_between(base, head):
    missing = "nothing"
    return [{"what": what, "base": base.get(what, missing), "head": head.get(what, missing)}
            for what in dict.fromkeys([*base, *head]) if base.get(what, missing) != head.get(what, missing)]


def judge(case, base, head):
    differences = differences_between(base, head)
    count = len({*base, *head})
    if not differences:
        return Verdict(case.name, "equal", f"{count} values", [], count)
    first = differences[0]
    text = f"{first['what']}: {first['base']} -> {first['head']} ({len(differences)} of {count} values differ)"
    return Verdict(case.name, "differs", text, differences, count)


def compare_case(case, workspace, base, head):
    folder = workspace.folder / case.name
    folder.mkdir()
    try:
        settings = workspace.pinned(case)
        try:
            expected = facts_of(base, case, folder, settings)
        except Failed as error:
            raise CannotCompare(f"base failed: {error}") from None
        try:
            found = facts_of(head, case, folder, settings)
        except Failed as error:
            return Verdict(case.name, "differs", f"head failed: {error}", [])
        return judge(case, expected, found)
    except (CannotCompare, OSError, ValueError, KeyError) as error:
        return Verdict(case.name, "error", f"{error}" or type(error).__name__, [])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Timing


@dataclasses.dataclass
class Timing:
    name: str
    base_s: list  # by round
    head_s: list

    def ratios(self):
        return [head / base for base, head in zip(self.base_s, self.head_s)]

    def ratio(self):
        return statistics.median(self.ratios())


def time_training(case, workspace, sides, rounds):
    folder = workspace.folder / f"{case.name}-timed"
    folder.mkdir()
    never = {"run.validate_every": 0, "run.log": "none"}
    settings = workspace.pinned(case) | never | {"train.steps": TIMED_STEPS}
    seconds = {side.role: [] for side in sides}
    try:
        for number in range(rounds):
            for side in sides:
                code, printed, errors = run(side.program, "train", workspace.folder / "recipe.toml", "--json",
                                            *as_flags(settings | {"run.out": f"{side.role}-{number}"}), cwd=folder)
                if code != 0:
                    raise CannotCompare(f"{case.name}, timed: {side.role} failed: {last_line(errors)}")
                seconds[side.role].append(json.loads(printed)["step_seconds"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Timing(case.name, seconds["base"], seconds["head"])


class Bench:
    """A program of bench/ that takes a command a line and answers in JSON."""

    def __init__(self, program, words):
        self.process = subprocess.Popen([program, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def ask(self, line):
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise CannotCompare(f"{self.process.args[0]} ended at '{line}'")
        return json.loads(answer)


# layers, width, heads, context, vocabulary, batch, threads: large enough for GEMMs to matter.
SHAPE = (4, 128, 4, 128, 256, 4, 1)
TURN = 10  # steps


def time_bench(name, program, words, prepare, sides, rounds):
    """Both at once, taking turns; `prepare` are questions whose answers do not matter."""
    if not all(program in side.benches for side in sides):
        return None
    question = "{}" if program == "penstock_bench_step" else "steps {}"
    seconds = {side.role: [] for side in sides}
    with contextlib.ExitStack() as stack:
        running = {side.role: stack.enter_context(Bench(side.benches[program], words)) for side in sides}
        for bench in running.values():
            for line in (*prepare, question.format(3)):
                bench.ask(line)
        for _ in range(rounds):
            for role, bench in running.items():
                answer = bench.ask(question.format(TURN))
                steps = answer["seconds"] if isinstance(answer, dict) else answer
                seconds[role].append(statistics.median(steps))
    return Timing(name, seconds["base"], seconds["head"])


def timed_benches():
    """(name, program, words of its command line, lines to prepare it)"""
    return [
        ("bench-step", "penstock_bench_step", (*SHAPE, "float32"), ()),
        ("bench-step-bfloat16", "penstock_bench_step", (*SHAPE, "bfloat16"), ()),
        ("bench-recompute-none", "penstock_bench_recompute", SHAPE, ("plan none",)),
        ("bench-recompute-least", "penstock_bench_recompute", SHAPE, ("plan least",)),
    ]


# Everything


def show(verdict, width):
    word = {"equal": "equal", "differs": "DIFFERS", "error": "ERROR"}[verdict.result]
    print(f"{verdict.name:{width}}  {word:7}  {verdict.text}", flush=True)


def compare_all(cases, workspace, base, head, jobs):
    width = max(len(case.name) for case in cases)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        workspace.measure_tables(cases, pool)
        verdicts = []
        for verdict in pool.map(lambda case: compare_case(case, workspace, base, head), cases):
            show(verdict, width)
            verdicts.append(verdict)
    return verdicts


def time_all(cases, benches, workspace, sides, rounds):
    timings, problems = [], []
    timers = [lambda case=case: time_training(case, workspace, sides, rounds) for case in cases]
    timers += [lambda bench=bench: time_bench(*bench, sides, rounds) for bench in benches]
    for timer in timers:
        try:
            if timing := timer():
                timings.append(timing)
        except (CannotCompare, OSError, ValueError, KeyError) as error:
            problems.append(str(error))
    return timings, problems


def show_timings(timings, rounds, slack):
    width = max(len(timing.name) for timing in timings)
    print(f"\nseconds per step, {rounds} rounds in turns\n{'':{width}}  {'base':>9}  {'head':>9}  ratio (by round)")
    for timing in timings:
        base, head = (f"{1e3 * statistics.median(side):.2f} ms" for side in (timing.base_s, timing.head_s))
        ratios = timing.ratios()
        is_slow = slack is not None and timing.ratio() > 1 + slack / 100
        spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
        mark = "  SLOWER" if is_slow else ""
        print(f"{timing.name:{width}}  {base:>9}  {head:>9}  {timing.ratio():.2f} {spread}{mark}")


def write_json(file, sides, verdicts, timings, problems):
    content = {
        **{side.role: side.title for side in sides},
        "cases": [dataclasses.asdict(verdict) for verdict in verdicts],
        "timings": [{**dataclasses.asdict(timing), "ratio": timing.ratio()} for timing in timings],
        "problems": problems,
    }
    pathlib.Path(file).write_text(json.dumps(content, indent=1) + "\n")


def matches(name, patterns):
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def positive(text):
    number = int(text)
    if number < 1:
        raise ValueError
    return number


EPILOG = """\
Commits are built once, in build/compare/COMMIT; git worktree remove --force build/compare/COMMIT removes one.

Exit code: 0, all is equal; 1, something differs or could not be compared; 2, bad arguments, or a commit does not build.
"""


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="bench/compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False, epilog=EPILOG)
    parser.add_argument("--base", metavar="REV", default="HEAD~1", help="the commit to compare with, or a built program (default: HEAD~1)")
    parser.add_argument("--head", metavar="REV", default="work",
                        help="the other; 'work' is the working tree as it is, built in build/release (default)")
    parser.add_argument("--noise", action="store_true", help="base against base: what noise is")
    parser.add_argument("--only", metavar="GLOB", action="append",
                        help="only cases of such names, as 'data2-*'; may be given several times")
    parser.add_argument("--list", action="store_true", help="print the cases and their settings, and run nothing")
    parser.add_argument("--times", metavar="N", type=int, default=3, help="rounds of timing; 0: none (default: 3)")
    parser.add_argument("--slack", metavar="PERCENT", type=float,
                        help="a timed case in which head takes so much longer counts as a difference; else none does")
    parser.add_argument("--jobs", metavar="N", type=positive, default=len(os.sched_getaffinity(0)),
                        help="cases at the same time (default: the cores); timing always has the machine to itself")
    parser.add_argument("--json", metavar="FILE", help="write everything that was found")
    return parser.parse_args()


def list_cases(cases, benches):
    for case in cases:
        words = [f"{key}={value}" for key, value in case.settings.items()]
        words += [f"limit={case.limit:g}"] if case.limit is not None else []
        words += [case.kind] if case.kind != "train" else []
        words += ["timed"] if case.is_timed else []
        print(case.name, *words)
    for name, program, *_ in benches:
        print(name, f"timed by {program}")


def compare_commits(a, cases, benches, folder):
    base = make_side("base", a.base, folder)
    head = dataclasses.replace(base, role="head") if a.noise else make_side("head", a.head, folder)
    print(f"base {base.title}, head {head.title}", flush=True)
    workspace = Workspace(folder, base)
    began = time.monotonic()
    verdicts = compare_all(cases, workspace, base, head, a.jobs) if cases else []
    count = collections.Counter(verdict.result for verdict in verdicts)
    print(f"\n{count['equal']} of {len(verdicts)} cases equal, {count['differs']} differ, {count['error']} could not "
          f"be compared; {time.monotonic() - began:.0f} s", flush=True)

    timings, problems = [], []
    if a.times > 0:
        can_run = {verdict.name for verdict in verdicts if verdict.result != "error"}
        timed = [case for case in cases if case.is_timed and case.name in can_run]
        timings, problems = time_all(timed, benches, workspace, [base, head], a.times)
    if timings:
        show_timings(timings, a.times, a.slack)
    for problem in problems:
        print(f"ERROR  {problem}")
    if a.json:
        write_json(a.json, [base, head], verdicts, timings, problems)
    is_slow = a.slack is not None and any(timing.ratio() > 1 + a.slack / 100 for timing in timings)
    return 1 if count["differs"] or count["error"] or problems or is_slow else 0


def main():
    a = parse_arguments()
    cases = [case for case in compare_cases.all_cases() if matches(case.name, a.only)]
    benches = [bench for bench in timed_benches() if matches(bench[0], a.only)]
    if not cases and not benches:
        raise BadArguments(f"no case is named {' or '.join(a.only)}; --list shows them")
    if a.list:
        list_cases(cases, benches)
        return 0
    with tempfile.TemporaryDirectory(prefix="penstock-compare-") as folder:
        return compare_commits(a, cases, benches, pathlib.Path(folder))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadArguments as error:
        say(error)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
