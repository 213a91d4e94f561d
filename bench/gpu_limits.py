#!/usr/bin/env python3
"""GPT-2 774M, batch 32, on a GPU under memory limits: measured beside predicted peak and seconds, next to PyTorch's
levers for memory (gpt2_peer.py), run one after the other. Prints the tables and draws the chart; fails where a peak is
above its limit, a prediction is off (peak 2 %, seconds 5 %), or PyTorch is faster with as much memory or more.

    bench/gpu_limits.py --penstock build/cuda/app/penstock --python ~/torch/bin/python --svg docs/gpu_limits.svg
                        [--limits 60,45,35,25,20,none] [--levers eager,eager+recompute=half,...|none] [--offload]
                        [--json rows.json] [--csv rows.csv]
    bench/gpu_limits.py --deterministic   no speed: the first losses at every limit, bit for bit those without one

With --json, rows that the file already has are kept and shown too: the rows can be measured by several calls.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import threading

from gpu_step import GIB, Rows, add_run_arguments, number, run_penstock, scaled, table, write_csv

SHAPES = {"124M": (12, 768, 12), "355M": (24, 1024, 16), "774M": (36, 1280, 20), "1558M": (48, 1600, 25)}
LIMITS = "none,60,45,35,25,20"
LEVERS = ("eager,eager+recompute=half,eager+recompute=all,"
          "compile+recompute=budget=0.5,compile+recompute=budget=0.2")
OFFLOAD = "eager+recompute=offload"
SHORT_NAMES = {"eager": "eager", "eager+recompute=half": "half recomputed", "eager+recompute=all": "all recomputed",
               "compile+recompute=budget=0.5": "compile, budget 0.5",
               "compile+recompute=budget=0.2": "compile, budget 0.2", OFFLOAD: "offload"}
MAX_PEAK_ERROR, MAX_STEP_ERROR = 0.02, 0.05


def penstock_row(a, limit, *more):
    memory = [] if limit == "none" else ["--set", f"plan.memory={limit}GiB"]
    return run_penstock(a, a.size, a.batch, "--peers", "none", *memory, *more)


def ask_all(command, lines, timeout):
    """The answers of a peer to all lines; fewer where it ended before, or did not end in time."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        watchdog = threading.Timer(timeout, peer.kill)
        watchdog.start()
        try:
            peer.stdin.write("\n".join([*lines, "quit"]) + "\n")
            peer.stdin.flush()
            return [json.loads(line) for line in peer.stdout]
        finally:
            watchdog.cancel()


def lever_row(a, lever):
    """A window of the peer: {"tokens_per_second", "peak_gib", "reserved_gib", ...}, or {"error": ...}."""
    mode, *options = lever.split("+")
    layers, width, heads = SHAPES[a.size]
    command = [a.python, a.peer, "--layers", layers, "--width", width, "--heads", heads, "--batch", a.batch,
               "--mode", mode]
    for option in options:
        name, _, value = option.partition("=")
        command += [f"--{name}", value]
    command = [str(word) for word in command]
    print("running", *command, file=sys.stderr, flush=True)
    try:
        answers = ask_all(command, [f"warm {a.warm}"] + [f"window {a.window}"] * a.rounds, a.timeout)
    except (OSError, json.JSONDecodeError) as error:
        return {"error": f"the peer failed: {error}"}
    errors = [answer["error"] for answer in answers if "error" in answer]
    windows = [answer for answer in answers if "tokens_per_second" in answer]
    if errors or len(windows) < a.rounds:
        return {"error": errors[0] if errors else "the peer ended early"}
    seconds = sum(window["seconds"] for window in windows)
    tokens = sum(window["tokens_per_second"] * window["seconds"] for window in windows)
    return {**windows[-1], "tokens_per_second": tokens / seconds}


def limit_figures(key, result):
    ours, predicted = result["ours"], result.get("predicted") or {}
    return {"what": "penstock", "limit_gib": None if key == "none" else float(key), "lever": None,
            "peak_gib": ours["peak_bytes"] / GIB, "reserved_gib": result["reserved_peak_bytes"] / GIB,
            "tok_s": ours["tokens_per_second"], "step_s": ours["step_s"],
            "predicted_s": predicted.get("step_s"), "predicted_peak_gib": scaled(predicted.get("peak_bytes"), 1 / GIB),
            "recomputed_forwards": predicted.get("recomputed_forwards")}


def lever_figures(lever, result):
    return {"what": "torch", "limit_gib": None, "lever": lever, "peak_gib": result["peak_gib"],
            "reserved_gib": result["reserved_gib"], "tok_s": result["tokens_per_second"]}


def lever_with_no_less(row, levers):
    """The lever of least memory that needs as much as the row or more; of equals, the fastest. Offload, which is far
    slower than all others, is no measure where one of them is left."""
    enough = [lever for lever in levers if lever["peak_gib"] >= row["peak_gib"]]
    enough = [lever for lever in enough if lever["lever"] != OFFLOAD] or enough
    return min(enough, key=lambda lever: (lever["peak_gib"], -lever["tok_s"]), default=None)


def ratio(a, b):
    return a / b if a and b else None


def limit_table(rows, levers):
    heading = ["limit GiB", "peak GiB", "predicted", "ratio", "reserved", "tokens/s", "step ms", "predicted", "ratio",
               "recomputed forwards", "PyTorch with no less memory", "its tokens/s", "ours over it"]
    cells = []
    for row in rows:
        lever = lever_with_no_less(row, levers)
        cells.append([
            number(row["limit_gib"], "{:g}") if row["limit_gib"] else "none", number(row["peak_gib"]),
            number(row["predicted_peak_gib"]), number(ratio(row["predicted_peak_gib"], row["peak_gib"]), "{:.4f}"),
            number(row["reserved_gib"]), number(row["tok_s"], "{:,.0f}"), number(1e3 * row["step_s"], "{:.1f}"),
            number(scaled(row["predicted_s"], 1e3), "{:.1f}"),
            number(ratio(row["predicted_s"], row["step_s"]), "{:.4f}"), number(row["recomputed_forwards"], "{}"),
            f"{short_name(lever['lever'])}, {lever['peak_gib']:.2f} GiB" if lever else "-",
            number(lever and lever["tok_s"], "{:,.0f}"), number(lever and row["tok_s"] / lever["tok_s"], "{:.3f}")])
    return table(heading, cells)


def lever_table(levers, rows):
    """The other way round: the fastest of ours that needs no more than the lever."""
    cells = []
    for lever in levers:
        ours = max((row for row in rows if row["peak_gib"] <= lever["peak_gib"]), key=lambda row: row["tok_s"],
                   default=None)
        cells.append([short_name(lever["lever"]), number(lever["peak_gib"]), number(lever["reserved_gib"]),
                      number(lever["tok_s"], "{:,.0f}"), number(ours and ours["peak_gib"]),
                      number(ours and ours["tok_s"], "{:,.0f}"),
                      number(ours and ours["tok_s"] / lever["tok_s"], "{:.3f}")])
    return table(["PyTorch", "peak GiB", "reserved", "tokens/s", "our peak GiB, no more", "our tokens/s", "ratio"],
                 cells)


def short_name(lever):
    return SHORT_NAMES.get(lever, lever)


def limit_name(row):
    return f"limit {row['limit_gib']:g} GiB" if row["limit_gib"] else "no limit"


def verdicts(rows, levers):
    """What is wrong, a line each."""
    wrong = []
    for row in rows:
        name = limit_name(row)
        if row["limit_gib"] and row["peak_gib"] > row["limit_gib"]:
            wrong.append(f"{name}: a peak of {row['peak_gib']:.3f} GiB")
        for what, predicted, measured, most in (("peak", row["predicted_peak_gib"], row["peak_gib"], MAX_PEAK_ERROR),
                                                ("seconds", row["predicted_s"], row["step_s"], MAX_STEP_ERROR)):
            if predicted is None:
                wrong.append(f"{name}: no predicted {what}")
            elif abs(predicted / measured - 1) > most:
                wrong.append(f"{name}: predicted {what} {predicted / measured:.4f} times the measured")
        lever = lever_with_no_less(row, levers)
        if lever and row["tok_s"] <= lever["tok_s"]:
            wrong.append(f"{name}: {row['tok_s']:,.0f} tokens/s, and {short_name(lever['lever'])} has "
                         f"{lever['tok_s']:,.0f} in {lever['peak_gib']:.2f} GiB")
    return wrong


def chart(rows, levers):
    """Tokens a second over the measured peak: ours a line, with the limit at each point, PyTorch's levers points."""
    width, height, left, bottom, top, right = 760, 420, 80, 50, 40, 30
    points = sorted((row["peak_gib"], row["tok_s"], row["limit_gib"]) for row in rows)
    everything = [point[:2] for point in points] + [(lever["peak_gib"], lever["tok_s"]) for lever in levers]
    most_x, most_y = max(p[0] for p in everything) * 1.04, max(p[1] for p in everything) * 1.1
    ours, theirs = "#d55e00", "#555f6b"

    def x(value):
        return left + value / most_x * (width - left - right)

    def y(value):
        return height - bottom - value / most_y * (height - bottom - top)

    def text(px, py, words, more=""):
        return f'<text x="{px:.1f}" y="{py:.1f}" {more}>{words}</text>'

    def dot(point, colour):
        return f'<circle cx="{x(point[0]):.1f}" cy="{y(point[1]):.1f}" r="4" fill="{colour}"/>'

    parts = []
    for gib in range(0, int(most_x) + 1, 10):
        parts.append(f'<line x1="{x(gib):.1f}" x2="{x(gib):.1f}" y1="{top}" y2="{height - bottom}" stroke="#ddd"/>' +
                     text(x(gib), height - bottom + 18, gib, 'text-anchor="middle"'))
    unit = 10 ** math.floor(math.log10(most_y / 2))
    unit *= 2 if most_y / unit > 8 else 1
    for tick in range(int(most_y / unit) + 1):
        at = y(tick * unit)
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>' +
                     text(left - 8, at + 4, f"{tick * unit:,}", 'text-anchor="end"'))
    path = " ".join(f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in points)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{ours}" stroke-width="2"/>')
    for point in points:
        # Beside its point, for a limit that hardly binds lies under it.
        words, dx, dy, anchor = (f"{point[2]:g}", 0, -9, "middle") if point[2] else ("no limit", 10, 4, "start")
        parts.append(dot(point, ours) +
                     text(x(point[0]) + dx, y(point[1]) + dy, words, f'text-anchor="{anchor}" fill="{ours}"'))
    for lever in levers:
        point = (lever["peak_gib"], lever["tok_s"])
        is_at_edge = x(point[0]) > width - right - 130  # then below
        dx, dy, anchor = (4, 18, "end") if is_at_edge else (8, 5, "start")
        parts.append(dot(point, theirs) + text(x(point[0]) + dx, y(point[1]) + dy, short_name(lever["lever"]),
                                               f'text-anchor="{anchor}" fill="{theirs}"'))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            f'font-size="13" fill="#333"><rect width="{width}" height="{height}" fill="#fff"/>{"".join(parts)}' +
            text(width / 2, height - 10, "measured peak, GiB", 'text-anchor="middle"') +
            text(left, top - 16, "tokens a second") +
            text(width - 360, top - 16, "Penstock, with its limit in GiB", f'fill="{ours}"') +
            text(width - 130, top - 16, "PyTorch", f'fill="{theirs}"') + "</svg>\n")


def measure(a, limits, levers):
    rows = Rows(a.json)
    for limit in limits:
        rows.put(f"limit {limit}", penstock_row(a, limit, "--predict"))
    for lever in levers:
        rows.put(f"lever {lever}", lever_row(a, lever))
    return rows.by_key


def speed(a, limits, levers):
    measured = measure(a, limits, levers)
    wrong = [f"{key}: {row['error']}" for key, row in measured.items() if "error" in row]
    good = [(*key.split(" ", 1), row) for key, row in measured.items() if "error" not in row]
    rows = [limit_figures(name, row) for kind, name, row in good if kind == "limit"]
    rows.sort(key=lambda row: row["limit_gib"] or math.inf, reverse=True)
    peers = [lever_figures(name, row) for kind, name, row in good if kind == "lever"]
    peers.sort(key=lambda row: row["peak_gib"], reverse=True)
    print(limit_table(rows, peers))
    if peers:
        print(f"\n{lever_table(peers, rows)}")
    if a.csv and rows:
        write_csv(a.csv, rows + peers)
    if a.svg and rows:
        pathlib.Path(a.svg).write_text(chart(rows, peers))
    return wrong + verdicts(rows, peers)


def same_losses(losses):
    """What is wrong in {limit: losses}, a line each; JSON's numbers are exact, so that equal ones have equal bits."""
    free = losses["none"]
    wrong = []
    for limit, those in losses.items():
        count = min(len(those), len(free))
        differing = [i for i in range(count) if those[i] is None or those[i] != free[i]]
        if count < 2:
            wrong.append(f"limit {limit}: {count} losses to compare, which says nothing of gradients; try --window 3")
        elif differing:
            i = differing[0]
            wrong.append(f"limit {limit}: loss {i} is {those[i]}, without a limit {free[i]}")
        else:
            print(f"limit {limit}: {count} losses, the same bits; the last {those[count - 1]!r}")
    return wrong


def bits(a, limits):
    wrong, losses = [], {}
    for limit in ["none"] + [limit for limit in limits if limit != "none"]:
        row = penstock_row(a, limit, "--set", "run.deterministic=true")
        if "error" in row:
            wrong.append(f"limit {limit}: {row['error']}")
        elif limit != "none" and row["ours"]["peak_bytes"] > float(limit) * GIB:
            wrong.append(f"limit {limit}: a peak of {row['ours']['peak_bytes'] / GIB:.3f} GiB")
        if "error" not in row:
            losses[limit] = row["first_losses"]
    return wrong + (same_losses(losses) if "none" in losses else [])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_arguments(parser, window=None, warm=None, rounds=1)
    parser.add_argument("--size", choices=SHAPES, default="774M")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--limits", default=LIMITS, help="GiB, separated by commas; none: no limit; empty: no runs")
    parser.add_argument("--levers", default=LEVERS, help="PyTorch's, separated by commas; none: no runs")
    parser.add_argument("--offload", action="store_true", help="also saved tensors on the CPU, which is slow")
    parser.add_argument("--deterministic", action="store_true", help="compare the first losses, bit for bit")
    parser.add_argument("--svg", help="draw the chart into this file")
    a = parser.parse_args()
    if a.window is None:
        a.window = 1 if a.deterministic else 5
    if a.warm is None:
        a.warm = 0.1 if a.deterministic else 4
    return a


def main():
    a = parse_arguments()
    limits = [limit for limit in a.limits.split(",") if limit]
    levers = [] if a.levers in ("none", "") else a.levers.split(",")
    levers += [OFFLOAD] if a.offload else []
    wrong = bits(a, limits) if a.deterministic else speed(a, limits, levers)
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
