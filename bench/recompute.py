"""The training step of a GPT-2 in little memory: Penstock's plans next to PyTorch's block checkpointing, in one run.

Every way of checkpointing (a lever) is first measured for its activation peak; then Penstock plans for exactly that
many bytes and the two take turns. The run fails if Penstock is slower at any of them, takes more bytes than it was
allowed, or needs more than 75 % of the fewest bytes that PyTorch can be brought to. See bench/README.md.
"""
import argparse
import dataclasses
import functools
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Callable

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils import checkpoint as checkpointing

from step import Gpt2, HERE, PyTorch

MIB = 2**20
MUST_BE_BELOW = 0.25  # Penstock's least activation peak below PyTorch's lowest

# Dropout is 0, so the state of the random numbers need not be kept: PyTorch's fastest form.
checkpoint = functools.partial(checkpointing.checkpoint, use_reentrant=False, preserve_rng_state=False)


def say(text):
    print(text, file=sys.stderr, flush=True)


# --- Levers ---


@dataclasses.dataclass(frozen=True)
class Lever:
    name: str
    recomputed: int | None  # recomputed blocks; None where that is no measure
    run: Callable  # (blocks, x) -> x


def first_blocks(count):
    """The first ones: their activations are made again when those of the kept blocks are gone already."""

    def run(blocks, x):
        for index, block in enumerate(blocks):
            x = checkpoint(block, x) if index < count else block(x)
        return x

    return run


def segments(count):
    return lambda blocks, x: checkpointing.checkpoint_sequential(
        blocks, count, x, use_reentrant=False, preserve_rng_state=False)


def nested(count, parts):
    """Checkpointed segments of checkpointed parts."""

    def run(blocks, x):
        size = len(blocks) // count
        for begin in range(0, len(blocks), size):
            inner = [part for block in blocks[begin:begin + size] for part in parts(block)]
            x = checkpoint(lambda x, inner=inner: functools.reduce(lambda x, part: checkpoint(part, x), inner, x), x)
        return x

    return run


def selective(operators):
    """All blocks checkpointed, the results of these operators kept."""
    contexts = functools.partial(checkpointing.create_selective_checkpoint_contexts, operators)
    return lambda blocks, x: functools.reduce(lambda x, block: checkpoint(block, x, context_fn=contexts), blocks, x)


def make_levers(layers, more):
    divisors = [count for count in range(1, layers + 1) if layers % count == 0]
    levers = [Lever(f"k={count}", count, first_blocks(count)) for count in range(layers + 1)]
    # checkpoint_sequential keeps the last segment.
    levers += [Lever(f"s={count}", layers - layers // count, segments(count)) for count in divisors]
    if more:
        whole, halves = (lambda block: [block]), (lambda block: [block.attend, block.feed])
        levers += [Lever(f"nested {count}", None, nested(count, whole)) for count in divisors[1:-1]]
        levers += [Lever(f"nested halves {count}", None, nested(count, halves)) for count in divisors[1:]]
        aten = torch.ops.aten
        attention = [aten._scaled_dot_product_flash_attention_for_cpu.default]
        gemms = [aten.mm.default, aten.addmm.default]
        levers.append(Lever("keep attention", None, selective(attention)))
        levers.append(Lever("keep GEMMs", None, selective(attention + gemms)))
    return {lever.name: lever for lever in levers}


# --- PyTorch's activation peak ---


def memory_held(work):
    """The bytes of CPU tensors after each allocation and each release during work(), from 0.

    PyTorch's allocator tells the profiler of all of them, with the bytes asked for. A release of what was allocated
    before goes unseen or, where an earlier profile knew the address, counts wrongly: work() must release nothing older.
    """
    gc.collect()
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
            work()
    finally:
        gc.enable()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())  # stable
    held = [0]
    for event in events:
        held.append(held[-1] + event.nbytes())
    if min(held) < 0:
        raise RuntimeError("bench: the measured work released memory that it had not allocated")
    return held


def peak_bytes(work, left=0):
    held = memory_held(work)
    if held[-1] != left:
        raise RuntimeError(f"bench: the measured work left {held[-1]} bytes allocated instead of {left}")
    return max(held)


def check_peak_meter():
    """Fails unless the meter gives the peaks that follow by hand."""

    def blocks():
        a = torch.empty(4 * MIB, dtype=torch.uint8)
        b = torch.empty(2 * MIB, dtype=torch.uint8)
        del a
        c = torch.empty(3 * MIB, dtype=torch.uint8)
        del b, c

    # A linear layer of which input, output gradient and weight gradient are there: its output (held to the end) and,
    # in the backward, the matmul's result that is added to the weight gradient.
    rows, inner, outer = 1000, 300, 500
    layer = torch.nn.Linear(inner, outer, bias=False)
    layer.weight.grad = torch.zeros_like(layer.weight)
    x, gradient = torch.randn(rows, inner), torch.randn(rows, outer)

    def linear():
        y = layer(x)
        y.backward(gradient)

    # Four of them in a row, with outputs h1, h2, h3, y, as two pairs that are kept or checkpointed. The peak is in the
    # backward of the last layer, which makes the gradients of h3 and of its weight; checkpointed, h1 is not there then.
    side = 256
    row = torch.nn.ModuleList(torch.nn.Linear(side, side, bias=False) for _ in range(4))
    for one in row:
        one.weight.grad = torch.zeros_like(one.weight)
    start, end = torch.randn(8 * side, side), torch.randn(8 * side, side)
    weight, rows_bytes = 4 * side * side, 4 * 8 * side * side

    def pair(x, first):
        return row[first + 1](row[first](x))

    def chain(call):
        y = call(pair, call(pair, start, 0), 2)
        y.backward(end)

    expected = {
        "blocks": (blocks, 6 * MIB),
        "linear": (linear, 4 * (rows * outer + outer * inner)),
        # h1, h2, h3, y, the gradient of h3; that of the weight
        "kept": (lambda: chain(lambda f, *rest: f(*rest)), 5 * rows_bytes + weight),
        # h2 (the second pair's input), h3 made again, y, the gradient of h3; that of the weight
        "checkpointed": (lambda: chain(checkpoint), 4 * rows_bytes + weight),
    }
    for name, (work, by_hand) in expected.items():
        work()
        measured = peak_bytes(work)
        if measured != by_hand:
            raise SystemExit(f"bench: the peak meter is wrong: {name} measures {measured} bytes, by hand {by_hand}")


class Model(Gpt2):
    lever = None

    def run_blocks(self, x):
        return self.lever.run(list(self.blocks), x)


class Checkpointed(PyTorch):
    """PyTorch with a lever set."""

    def __init__(self, a):
        a.precision = "float32"
        super().__init__(a, Model)
        self.vocabulary = a.vocabulary
        self.resident_gradients = sum(4 * p.numel() for p in self.model.parameters())

    def set(self, lever):
        self.model.lever = lever

    def steps(self, count):
        # Other tokens for every turn: those of one batch are soon known by heart, and then gradients become denormal.
        self.inputs.random_(self.vocabulary)
        self.targets.random_(self.vocabulary)
        return super().steps(count)

    def activation_peak(self):
        """Above parameters, gradients and optimizer state, all of them resident as in Penstock."""
        self.free_gradients = False
        self.steps(2)
        return peak_bytes(self.step)

    def peak_above_state(self):
        """Above parameters and optimizer state, the gradients freed before the step: PyTorch's default."""
        self.free_gradients = True
        self.steps(1)
        self.optimizer.zero_grad(set_to_none=True)
        return peak_bytes(self.step, left=self.resident_gradients)


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
    pytorch, levers = Checkpointed(a), make_levers(a.layers, a.more)
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
    unknown = set(a.levers.split(",") if a.levers else []) - {"all", *make_levers(a.layers, a.more)}
    if unknown:
        parser.error(f"no such lever: {', '.join(unknown)}; there are {', '.join(make_levers(a.layers, a.more))}")
    torch.manual_seed(1)
    check_peak_meter()
    result = compare(a)
    if a.json:
        print(json.dumps(result))
    else:
        print_result(a, result)
    for failure in result["failures"]:
        print(f"bench: FAILED: {failure}", file=sys.stderr)
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
