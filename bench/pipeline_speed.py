#!/usr/bin/env python3
"""The step of a pipeline of two ranks with a thread each next to that of one rank with one thread, measured beside
simulated. Prints one table; fails where a measured ratio is more than 8 % from the simulated one.

    bench/pipeline_speed.py [--penstock build/release/app/penstock] [--schedules 1f1b,zb-h1,gpipe] [--rounds 3]

The machine should have two cores and nothing else to do. Runs take turns: one rank, then each schedule, again and again;
each figure is the median of the rounds.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RECIPE = """
[model]
layers = 8
width = 384
heads = 6
context = 256
vocabulary = 512

[data]
path = "{data}"

[train]
steps = {steps}
batch = 16

[plan]
micro_batches = 8

[run]
out = "{out}"
threads = 1
"""
MOST_OFF = 0.08


def run(a, *words):
    done = subprocess.run([str(a.penstock), "-q", *map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def run_json(a, *words):
    return json.loads(run(a, *words, "--json")[-1])


def write_recipe(folder, text, steps):
    """With this repository's own sources to train on."""
    data = folder / "text"
    data.write_bytes(b"".join(path.read_bytes() for path in sorted((HERE.parent / "src").rglob("*.cpp"))))
    recipe = folder / "recipe.toml"
    recipe.write_text(text.format(data=data, steps=steps, out=folder / "run"))
    return recipe


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=HERE.parent / "build/release/app/penstock")
    parser.add_argument("--schedules", default="1f1b,zb-h1,gpipe")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="steps of a run; the first does not count")
    parser.add_argument("--any-speed", action="store_true", help="seconds are shown, and fail nothing")
    a = parser.parse_args()
    schedules = a.schedules.split(",")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        recipe = write_recipe(folder, RECIPE, a.steps)
        one = ["plan.pipeline=1"]
        two = {name: ["plan.pipeline=2", f"plan.schedule={name}"] for name in schedules}
        all_settings = {"one rank": one, **two}
        measured = {name: [] for name in all_settings}
        simulated = {name: [] for name in all_settings}
        for _ in range(a.rounds):
            for name, settings in all_settings.items():
                words = [word for setting in settings for word in ("--set", setting)]
                simulated[name].append(run_json(a, "plan", recipe, *words)["step_s"])
                measured[name].append(run_json(a, "train", recipe, *words)["step_seconds"])
        base_measured = statistics.median(measured["one rank"])
        base_simulated = statistics.median(simulated["one rank"])
        print("| | measured s | simulated s | measured ratio | simulated ratio | off by |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        is_off = False
        for name in all_settings:
            seconds, predicted = statistics.median(measured[name]), statistics.median(simulated[name])
            ratio, expected = seconds / base_measured, predicted / base_simulated
            off = ratio / expected - 1
            is_off = is_off or abs(off) > MOST_OFF
            print(f"| {name} | {seconds:.3f} | {predicted:.3f} | {ratio:.3f} | {expected:.3f} | {100 * off:+.1f} % |")
    sys.exit(1 if is_off and not a.any_speed else 0)


if __name__ == "__main__":
    main()
