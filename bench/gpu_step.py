#!/usr/bin/env python3
"""The training step of GPT-2's four sizes on a GPU, next to torch.compile and PyTorch eager in the same run, and to the
figures of llm.c. Prints one table; fails where Penstock is not as far ahead as it should be.

    bench/gpu_step.py --penstock build/cuda/app/penstock --python ~/torch/bin/python [--sizes 124M:64,355M:32]
                      [--json rows.json] [--csv rows.csv] [--kernels]

With --json, rows that the file already has are kept and shown too: the sizes can be measured by several calls.
"""
import argparse
import csv
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
GIB = 2**30
SIZES = "124M:64,355M:32,774M:16,1558M:8"
# Tokens a second of llm.c at these sizes, measured on one H200 with the batches above.
LLM_C = {("124M", 64): 480584, ("355M", 32): 189677, ("774M", 16): 91578, ("1558M", 8): 46065}
# How many times the best of the others Penstock should reach.
LINES = {"124M": 1.10, "355M": 1.10, "774M": 1.07, "1558M": 1.07}


def run_penstock(a, size, batch, *more):
    """The JSON of `penstock bench step`, or {"error": ...}. What it tells on the way goes to our stderr."""
    command = [a.penstock, "bench", "step", "--size", size, "--batch", batch, "--warm", a.warm, "--window", a.window,
               "--rounds", a.rounds, "--json", *more]
    command = [str(word) for word in command]
    print("running", *command, file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=a.timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {a.timeout:g} s"}
    except OSError as error:
        return {"error": str(error)}
    if done.returncode != 0:
        return {"error": f"penstock ended with {done.returncode}"}
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"error": "penstock printed no JSON"}


class Rows:
    """Rows by key, in a file if there is one: measured again, a row takes the place of its former self."""

    def __init__(self, path):
        self.path = pathlib.Path(path) if path else None
        self.by_key = json.loads(self.path.read_text()) if self.path and self.path.exists() else {}

    def put(self, key, row):
        self.by_key[key] = row
        if self.path:
            self.path.write_text(json.dumps(self.by_key, indent=1) + "\n")


def write_csv(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def table(heading, rows):
    lines = [heading, ["---"] + ["---:"] * (len(heading) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value, form="{:.2f}"):
    return form.format(value) if value is not None else "-"


def scaled(value, factor):
    return value * factor if value is not None else None


def figures(size, batch, result):
    """A row of the table and the CSV."""
    ours = result["ours"]
    others = {peer["who"].removeprefix("torch "): peer["tokens_per_second"] for peer in result["peers"]}
    llm_c = LLM_C.get((size, batch))
    all_others = {**others, **({"llm.c": llm_c} if llm_c else {})}
    best = max(all_others, key=all_others.get, default=None)
    return {"model": size, "batch": batch, "tok_s": ours["tokens_per_second"], "step_ms": 1e3 * ours["step_s"],
            "tflops": ours["tflops"], "mfu": ours["mfu"], "mj_per_token": scaled(ours["joules_per_token"], 1e3),
            "watts": ours["watts"], "clock_mhz": ours["clock_mhz"], "peak_gib": ours["peak_bytes"] / GIB,
            "compile_tok_s": others.get("compile"), "eager_tok_s": others.get("eager"), "llm_c_tok_s": llm_c,
            "best_other": best, "ratio": ours["tokens_per_second"] / all_others[best] if best else None,
            "should_be": LINES.get(size)}


def step_table(rows):
    heading = ["GPT-2, batch", "tokens/s", "step ms", "TFLOP/s", "MFU", "mJ/token", "W", "MHz", "peak GiB", "compile",
               "eager", "llm.c", "over the best", "should be"]
    return table(heading, [
        [f"{row['model']}, {row['batch']}", number(row["tok_s"], "{:,.0f}"), number(row["step_ms"]),
         number(row["tflops"], "{:.0f}"), number(row["mfu"], "{:.1%}"), number(row["mj_per_token"], "{:.3f}"),
         number(row["watts"], "{:.0f}"), number(row["clock_mhz"], "{:.0f}"), number(row["peak_gib"]),
         number(row["compile_tok_s"], "{:,.0f}"), number(row["eager_tok_s"], "{:,.0f}"),
         number(row["llm_c_tok_s"], "{:,.0f}"), f"{number(row['ratio'], '{:.3f}')} ({row['best_other']})",
         number(row["should_be"])] for row in rows])


def group_table(result):
    """Milliseconds beside the floor by kind of work; joules as if all kernels drew alike."""
    watts = result["ours"]["watts"]
    cells = []
    for group in result["groups"]:
        floor = group["floor_s"]
        cells.append([group["name"], number(1e3 * group["seconds"], "{:.3f}"), number(scaled(floor, 1e3), "{:.3f}"),
                      number(group["seconds"] / floor if floor else None),
                      number(scaled(watts, group["seconds"]))])
    return table([f"GPT-2 {result['model']}", "ms", "floor ms", "over floor", "J (by time)"], cells)


def verdicts(rows):
    """What is wrong, a line each."""
    wrong = []
    for key, row in rows.items():
        if "error" in row:
            wrong.append(f"{key}: {row['error']}")
            continue
        figure = figures(key.split(":")[0], row["batch"], row)
        missing = [name for name in ("compile", "eager") if figure[f"{name}_tok_s"] is None]
        if missing:
            wrong.append(f"{key}: no figure of torch {' and '.join(missing)}")
        if figure["should_be"] and (figure["ratio"] or 0) < figure["should_be"]:
            wrong.append(f"{key}: {number(figure['ratio'], '{:.3f}')} times {figure['best_other']}, "
                         f"should be {figure['should_be']:.2f}")
    return wrong


def add_run_arguments(parser, window, warm, rounds):
    parser.add_argument("--penstock", default=HERE.parent / "build/cuda/app/penstock")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--peer", default=HERE / "gpt2_peer.py")
    parser.add_argument("--window", type=float, default=window, help="seconds of a measured window")
    parser.add_argument("--warm", type=float, default=warm, help="seconds of steps before the first window")
    parser.add_argument("--rounds", type=int, default=rounds, help="windows of each")
    parser.add_argument("--timeout", type=float, default=900, help="seconds after which a run is given up")
    parser.add_argument("--json", help="keep all that was measured in this file, and begin with what it has")
    parser.add_argument("--csv", help="write the table to this file")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_arguments(parser, window=5, warm=5, rounds=2)
    parser.add_argument("--sizes", default=SIZES, help="SIZE:BATCH, separated by commas; empty: none, show --json's")
    parser.add_argument("--kernels", action="store_true", help="also milliseconds by kind of work, beside the floor")
    a = parser.parse_args()
    rows = Rows(a.json)
    wanted = [key for key in a.sizes.split(",") if key]
    for key in wanted:
        size, batch = key.split(":")
        more = ["--peers", "compile,eager", "--python", a.python, "--peer-script", a.peer]
        rows.put(key, run_penstock(a, size, batch, *more, *(["--kernels"] if a.kernels else [])))
    measured = {key: row for key, row in rows.by_key.items() if "error" not in row}
    flat = [figures(key.split(":")[0], row["batch"], row) for key, row in measured.items()]
    print(step_table(flat))
    for row in measured.values():
        if "groups" in row:
            print(f"\n{group_table(row)}")
    if a.csv and flat:
        write_csv(a.csv, flat)
    wrong = verdicts(rows.by_key)
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
