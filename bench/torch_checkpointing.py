"""The peers of recompute.py: every way in which PyTorch checkpoints the blocks of a GPT-2 (a lever), and a meter of the
activation peak, byte by byte."""
import dataclasses
import functools
import gc
from typing import Callable

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils import checkpoint as checkpointing

from torch_step import Gpt2, PyTorch

MIB = 2**20

# Dropout is 0, so the state of the random numbers need not be kept: PyTorch's fastest form.
checkpoint = functools.partial(checkpointing.checkpoint, use_reentrant=False, preserve_rng_state=False)


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
