#!/usr/bin/env python3
"""A pipeline under a limit: one recomputation for all micro-batches of a stage (rotor-uniform) next to one for each
(rotor). Both are planned with the same measured costs and run in turns. Prints recomputed forwards, the simulated and
the measured step, and peaks; fails where a peak is above the limit or more than 3 % from its prediction, or where
rotor does not recompute fewer forwards, or is not faster in both.

    bench/pipeline_slots.py [--penstock build/release/app/penstock] [--cases gpipe:2:100MiB,1f1b:4:64MiB] [--rounds 3]

A case is schedule, ranks, limit of each rank. The machine should have a core for each rank and nothing else to do.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile

from pipeline_speed import run, run_json, write_recipe

HERE = pathlib.Path(__file__).resolve().parent
RECIPE = """
[model]
layers = 12
width = 256
heads = 8
context = 128
vocabulary = 512
dropout = 0.1

[data]
path = "{data}"

[train]
steps = {steps}
batch = 32

[plan]
micro_batches = 8

[run]
out = "{out}"
threads = 1
"""
WAYS = ("rotor-uniform", "rotor")
MOST_OFF = 0.03


def check(what, plans, trained, any_speed):
    wrong = []
    for way in WAYS:
        for peak, predicted in zip(trained[way][-1]["rank_peak_bytes"], plans[way]["peak_bytes"], strict=True):
            if peak > trained[way][-1]["limit_bytes"] or abs(predicted / peak - 1) > MOST_OFF:
                wrong.append(f"{what}, {way}: a peak of {peak} bytes, predicted {predicted}")
    uniform, apart = (plans[way] for way in WAYS)
    if apart["recomputed_forwards"] >= uniform["recomputed_forwards"]:
        wrong.append(f"{what}: rotor recomputes no fewer forwards")
    if apart["step_s"] >= uniform["step_s"]:
        wrong.append(f"{what}: rotor's simulated step is not shorter")
    if not any_speed and step(trained["rotor"]) >= step(trained["rotor-uniform"]):
        wrong.append(f"{what}: rotor's measured step is not shorter")
    return wrong


def step(runs):
    return statistics.median(one["step_seconds"] for one in runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", default=HERE.parent / "build/release/app/penstock")
    parser.add_argument("--cases", default="gpipe:2:100MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="steps of a run; the first does not count")
    parser.add_argument("--any-speed", action="store_true", help="measured seconds are shown, and fail nothing")
    a = parser.parse_args()
    wrong = []
    print("| schedule | ranks | limit | recompute | recomputed forwards | simulated s | measured s (of each round) | "
          "measured / predicted peaks |")
    print("| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        recipe = write_recipe(folder, RECIPE, a.steps)
        costs = folder / "costs.json"
        run(a, "profile", recipe, "--out", costs, "--set", "plan.pipeline=2")
        for case in a.cases.split(","):
            schedule, ranks, limit = case.split(":")
            words = {way: ["--set", f"plan.costs={costs}", "--set", f"plan.pipeline={ranks}", "--set",
                           f"plan.schedule={schedule}", "--set", f"plan.memory={limit}", "--set",
                           f"plan.recompute={way}"] for way in WAYS}
            plans = {way: run_json(a, "plan", recipe, *words[way]) for way in WAYS}
            trained = {way: [] for way in WAYS}
            for _ in range(a.rounds):
                for way in WAYS:
                    trained[way].append(run_json(a, "train", recipe, *words[way]))
            for way in WAYS:
                seconds = ", ".join(f"{one['step_seconds']:.3f}" for one in trained[way])
                peaks = ", ".join(f"{peak / predicted:.4f}" for peak, predicted in
                                  zip(trained[way][-1]["rank_peak_bytes"], plans[way]["peak_bytes"], strict=True))
                print(f"| {schedule} | {ranks} | {limit} | {way} | {plans[way]['recomputed_forwards']} | "
                      f"{plans[way]['step_s']:.3f} | {step(trained[way]):.3f} ({seconds}) | {peaks} |", flush=True)
            wrong += check(case, plans, trained, a.any_speed)
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
