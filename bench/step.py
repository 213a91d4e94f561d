"""The training step of a GPT-2, Penstock next to PyTorch eager, taking turns in one run. See bench/README.md."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


class Penstock:
    def __init__(self, a):
        shape = [a.layers, a.width, a.heads, a.context, a.vocabulary, a.batch, a.threads, a.precision]
        self.process = subprocess.Popen([a.program] + [str(value) for value in shape],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def steps(self, count):
        print(count, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"bench: {self.process.args[0]} ended ({self.process.wait()})")
        return json.loads(line)


def make_sides(a):
    sides = {"penstock": Penstock(a)}
    if a.peers == "torch":
        from torch_step import PyTorch  # only here: without peers this runs where there is no torch

        sides["pytorch"] = PyTorch(a)
    return sides


def take_turns(a, sides):
    """The seconds of each side's steps, and Penstock's median over PyTorch's, by round."""
    for side in sides.values():
        side.steps(2)  # warm-up
    seconds = {name: [] for name in sides}
    ratios = []
    for round_number in range(a.rounds):
        turns = {name: side.steps(a.steps) for name, side in sides.items()}
        for name, turn in turns.items():
            seconds[name] += turn
        if "pytorch" in turns:
            ratios.append(statistics.median(turns["penstock"]) / statistics.median(turns["pytorch"]))
        print(f"\rround {round_number + 1} of {a.rounds}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return seconds, ratios


def summarize(a, seconds, ratios):
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {f"{name}_ms": 1e3 * value for name, value in medians.items()}
    if ratios:
        result |= {"ratio": medians["penstock"] / medians["pytorch"], "ratio_least": min(ratios), "ratio_most": max(ratios)}
    return result | {"tokens_per_second": a.batch * a.context / medians["penstock"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in dict(layers=6, width=256, heads=8, context=256, vocabulary=50257, batch=8, threads=2).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side")
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn")
    parser.add_argument("--peers", choices=["torch", "none"], default="torch", help="none: Penstock alone, without torch")
    parser.add_argument("--program", default=HERE.parent / "build/release/bench/penstock_bench_step")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args()
    result = summarize(a, *take_turns(a, make_sides(a)))
    if a.json:
        print(json.dumps(result))
        return
    print(f"{a.layers} layers, width {a.width}, context {a.context}, batch {a.batch}, vocabulary {a.vocabulary}, "
          f"{a.precision}, {a.threads} threads")
    text = "median step: penstock {penstock_ms:.1f} ms"
    if a.peers == "torch":
        text += (", pytorch eager {pytorch_ms:.1f} ms, ratio {ratio:.3f} (by round {ratio_least:.3f} to {ratio_most:.3f})")
    print(text.format(**result))


if __name__ == "__main__":
    main()
