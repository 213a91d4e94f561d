"""The training step of a GPT-2 in little memory: Penstock's plans next to PyTorch's block checkpointing, in one run.

Every way of checkpointing (a lever) is first measured for its activation peak; then Penstock plans for exactly that
many bytes and the two take turns. The run fails if Penstock is slower at any of them, takes more bytes than it was
allowed, or needs more than 75 % of the fewest bytes that PyTorch can be brought to. See bench/README.md.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MIB = 2**20
MUST_BE_BELOW = 0.25  # Penstock's least activation peak below PyTorch's lowest


def say(text):
    print(text, file=sys.stderr, flush=True)


# --- Penstock ---


class Penstock:
    def __init__(self, a):
        shape = [a.layers, a.width, a.heads, a.context, a.vocabulary, a.batch, a.threads]
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        self.process = subprocess.Popen([a.program] + [str(value) for value in shape], env=environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command):
        try:
            print(command, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"bench: Penstock's program ended ({self.process.wait()}) at '{command}'")
        return json.loads(line)

    def plan(self, limit):
        return self.ask(f"plan {limit}")

    def steps(self, count):
        return self.ask(f"steps {count}")


# --- The comparison ---


def take_turns(a, penstock, pytorch):
    """Both as they are set: medians of the steps' seconds, their ratio with the range by round, Penstock's peak."""
    pytorch.free_gradients = a.free_gradients
    for side in (penstock, pytorch):
        side.steps(2)  # warm-up
    seconds = {"penstock": [], "pytorch": []}
    ratios, peaks = [], []
    for round_number in range(a.rounds):
        turns = {}
        for name in list(seconds)[::1 if round_number % 2 == 0 else -1]:
            if name == "penstock":
                answer = penstock.steps(a.steps)
                peaks.append(answer["activation_peak"])
                turns[name] = answer["seconds"]
            else:
                turns[name] = pytorch.steps(a.steps)
            seconds[name] += turns[name]
        ratios.append(statistics.median(turns["penstock"]) / statistics.median(turns["pytorch"]))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "penstock_s": medians["penstock"],
        "pytorch_s": medians["pytorch"],
        "ratio": medians["penstock"] / medians["pytorch"],
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
        "penstock_peak": max(peaks),
    }


def measure_levers(pytorch, levers):
    for lever in levers.values():
        pytorch.set(lever)
        row = {"lever": lever.name, "recomputed": lever.recomputed, "peak": pytorch.activation_peak(),
               "peak_gradients_freed": pytorch.peak_above_state()}
        say(f"PyTorch {lever.name}: activation peak {row['peak'] / MIB:.2f} MiB")
        yield row


def undominated(rows):
    """Without those that another beats in bytes or in recomputed blocks while being no worse in the other."""

    def beats(one, other):
        if None in (one["recomputed"], other["recomputed"]):
            return False
        pairs = [(one[key], other[key]) for key in ("peak", "recomputed")]
        return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)

    return [row for row in rows if not any(beats(other, row) for other in rows)]


def lowest(rows, prefix=""):
    """That of the lowest peak; of equal ones the first, which recomputes fewer blocks."""
    return min((row for row in rows if row["lever"].startswith(prefix)), key=lambda row: row["peak"])


def levers_to_time(a, rows):
    names = [row["lever"] for row in rows]
    if a.levers:
        return names if a.levers == "all" else a.levers.split(",")
    chosen = [f"k={round(a.layers * part / 4)}" for part in range(5)]
    # One segment keeps all, as k=0 does; as many as blocks keep the last block, as k=layers-1 does.
    same = ("s=1", f"s={a.layers}")
    chosen += [row["lever"] for row in undominated(rows) if row["lever"].startswith("s=") and row["lever"] not in same]
    if a.more:
        chosen += [lowest(rows, "nested")["lever"]] + [name for name in names if name.startswith("keep")]
    chosen.append(lowest(rows)["lever"])
    return list(dict.fromkeys(chosen))


def compare(a):
    import torch  # here, as its side: without peers this runs where there is no torch
    from torch_checkpointing import Checkpointed, check_peak_meter, make_levers

    levers = make_levers(a.layers, a.more)
    unknown = set(a.levers.split(",") if a.levers else []) - {"all", *levers}
    if unknown:
        raise SystemExit(f"bench: no such lever: {', '.join(unknown)}; there are {', '.join(levers)}")
    torch.manual_seed(1)
    check_peak_meter()
    pytorch = Checkpointed(a)
    rows = list(measure_levers(pytorch, levers))
    result = {"shape": {key: getattr(a, key) for key in SHAPE}, "torch": torch.__version__,
              "gradient_bytes": pytorch.resident_gradients, "levers": rows, "timed": [], "failures": []}
    if a.peaks_only:
        return result
    fail = result["failures"].append
    peaks = {row["lever"]: row["peak"] for row in rows}
    penstock = Penstock(a)
    for name in levers_to_time(a, rows):
        limit = peaks[name]
        plan = penstock.plan(limit)
        if not plan["feasible"]:
            fail(f"no plan within the {limit / MIB:.2f} MiB of PyTorch's {name}: "
                 f"the least is {plan['least_activation'] / MIB:.2f} MiB")
            continue
        pytorch.set(levers[name])
        turns = take_turns(a, penstock, pytorch)
        result["timed"].append({"lever": name, "pytorch_peak": limit, **turns, "plan": plan})
        say(f"{name}: ratio {turns['ratio']:.3f}")
        if turns["ratio"] > 1.0:
            fail(f"Penstock is slower than PyTorch's {name}: ratio {turns['ratio']:.3f}")
        if turns["penstock_peak"] > limit:
            fail(f"Penstock took {turns['penstock_peak'] / MIB:.2f} MiB, more than the {limit / MIB:.2f} MiB "
                 f"of PyTorch's {name}")
    row = lowest(rows)
    plan = penstock.plan("least")
    pytorch.set(levers[row["lever"]])
    turns = take_turns(a, penstock, pytorch)
    below = 1 - turns["penstock_peak"] / row["peak"]
    result["least"] = {"lever": row["lever"], "pytorch_peak": row["peak"], **turns, "below": below, "plan": plan,
                       "pytorch_gradients_freed": min(row["peak_gradients_freed"] for row in rows)}
    if below < MUST_BE_BELOW:
        fail(f"Penstock's least activation peak, {turns['penstock_peak'] / MIB:.2f} MiB, is not "
             f"{100 * MUST_BE_BELOW:.0f} % below PyTorch's lowest, {row['peak'] / MIB:.2f} MiB ({row['lever']})")
    return result


def run_alone(a):
    """Penstock at its least, halfway, and with all it can use: the bytes that it may take, and takes."""
    penstock = Penstock(a)
    least = penstock.plan("least")["least_activation"]
    most = penstock.plan("none")["predicted_activation_peak"]
    result = {"shape": {key: getattr(a, key) for key in SHAPE}, "timed": [], "failures": []}
    for limit in (least, (least + most) // 2, most):
        plan = penstock.plan(limit)
        penstock.steps(1)  # warm-up
        turns = [penstock.steps(a.steps) for _ in range(a.rounds)]
        peak = max(turn["activation_peak"] for turn in turns)
        seconds = statistics.median(second for turn in turns for second in turn["seconds"])
        result["timed"].append({"limit": limit, "penstock_peak": peak, "penstock_s": seconds, "plan": plan})
        if peak > limit:
            result["failures"].append(f"Penstock took {peak} bytes, more than the {limit} that it was allowed")
    return result


# --- Printing ---


def print_table(markdown, head, rows):
    if markdown:
        for row in [head, ["---"] * len(head)] + rows:
            print("| " + " | ".join(row) + " |")
    else:
        widths = [max(len(row[column]) for row in [head] + rows) for column in range(len(head))]
        for row in [head] + rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print()


def describe(a, name):
    if name.startswith("k="):
        return f"{name[2:]} of {a.layers} blocks"
    return f"segments: {name[2:]}" if name.startswith("s=") else name


def print_result(a, result):
    print(f"GPT-2, {a.layers} layers, width {a.width}, {a.heads} heads, context {a.context}, micro-batch {a.batch}, "
          f"vocabulary {a.vocabulary}, float32, {a.threads} threads, torch {result['torch']}"
          f"{', MKL as on Intel in PyTorch too' if a.fast_gemms else ''}\n")

    def mib(value):
        return f"{value / MIB:.1f}"

    def seconds(value):
        return f"{1e3 * value:.0f} ms"

    if a.peaks_only or not a.markdown:
        rows = result["levers"] if a.peaks_only else undominated(result["levers"])
        print_table(a.markdown, ["PyTorch checkpoints", "recomputed blocks", "activation peak, MiB",
                                 "with gradients, MiB", "with gradients freed between steps, MiB"],
                    [[describe(a, row["lever"]), str(row["recomputed"] if row["recomputed"] is not None else "-"),
                      *(f"{value / MIB:.2f}" for value in (row["peak"], row["peak"] + result["gradient_bytes"],
                                                           row["peak_gradients_freed"]))] for row in rows])
    if a.peaks_only:
        return
    print_table(a.markdown, ["PyTorch checkpoints", "activation peak, MiB", "Penstock's, MiB", "PyTorch's step",
                             "Penstock's step", "ratio (by round)"],
                [[describe(a, row["lever"]), mib(row["pytorch_peak"]), mib(row["penstock_peak"]),
                  seconds(row["pytorch_s"]), seconds(row["penstock_s"]),
                  "{ratio:.2f} ({ratio_least:.2f} to {ratio_most:.2f})".format(**row)] for row in result["timed"]])
    least = result["least"]
    print(f"Least activation peak: Penstock {mib(least['penstock_peak'])} MiB at {seconds(least['penstock_s'])} a step,"
          f" PyTorch {mib(least['pytorch_peak'])} MiB ({describe(a, least['lever'])}) at {seconds(least['pytorch_s'])},"
          f" {abs(100 * least['below']):.1f} % {'below' if least['below'] >= 0 else 'ABOVE'}.")
    gradients = result["gradient_bytes"]
    print(f"With the gradients: Penstock {mib(least['penstock_peak'] + gradients)} MiB, PyTorch "
          f"{mib(least['pytorch_peak'] + gradients)} MiB, {mib(least['pytorch_gradients_freed'])} MiB if it frees them "
          "between steps.")


def print_alone(result):
    print_table(False, ["limit, MiB", "Penstock's peak, MiB", "recomputed forwards", "Penstock's step"],
                [[f"{row['limit'] / MIB:.2f}", f"{row['penstock_peak'] / MIB:.2f}", str(row["plan"]["recomputed_forwards"]),
                  f"{1e3 * row['penstock_s']:.0f} ms"] for row in result["timed"]])


def use_fast_gemms():
    """Starts this script again with a preloaded library that makes MKL treat any processor as Intel's, as Penstock
    does. Returns in the process that has it."""
    if os.environ.get("PENSTOCK_BENCH_PRELOADED"):
        return
    folder = tempfile.TemporaryDirectory(prefix="penstock_bench_")
    library = pathlib.Path(folder.name) / "libfast_gemms.so"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-x", "c", "-", "-o", library], text=True,
                   input="int mkl_serv_intel_cpu_true(void) { return 1; }\n", check=True)
    preload = " ".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
    environment = {**os.environ, "LD_PRELOAD": preload, "PENSTOCK_BENCH_PRELOADED": "1"}
    with folder:
        sys.exit(subprocess.run([sys.executable] + sys.argv, env=environment).returncode)


SHAPE = dict(layers=12, width=256, heads=8, context=256, vocabulary=256, batch=8, threads=2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=6, help="turns of each side at a lever")
    parser.add_argument("--steps", type=int, default=2, help="steps in a turn")
    parser.add_argument("--program", default=HERE.parent / "build/release/bench/penstock_bench_recompute")
    parser.add_argument("--peers", choices=["torch", "none"], default="torch",
                        help="none: Penstock alone at three limits, without torch")
    parser.add_argument("--levers", help="those to time, as 'k=6,s=4', or 'all'; default: a spread, the lowest and "
                        "the segments that no other beats")
    parser.add_argument("--more", action="store_true", help="against nested and selective checkpointing too")
    parser.add_argument("--free-gradients", action="store_true", help="time PyTorch with gradients freed between steps")
    parser.add_argument("--fast-gemms", action="store_true", help="PyTorch with the AVX-512 GEMMs of MKL, which "
                        "it leaves aside on processors that are not Intel's")
    parser.add_argument("--peaks-only", action="store_true", help="PyTorch's activation peaks, without Penstock")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true", help="the table for the documentation")
    a = parser.parse_args()
    if a.fast_gemms:
        use_fast_gemms()
    if not a.peaks_only and not pathlib.Path(a.program).exists():
        parser.error(f"{a.program} is not there: build it first (cmake --build --preset release), or name it")
    result = compare(a) if a.peers == "torch" else run_alone(a)
    if a.json:
        print(json.dumps(result))
    elif a.peers == "torch":
        print_result(a, result)
    else:
        print_alone(result)
    for failure in result["failures"]:
        print(f"bench: FAILED: {failure}", file=sys.stderr)
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
