"""A GPT-2 trained under ten memory limits, from the least feasible to none: predicted beside measured bytes and seconds,
and the same bits at every limit; then what the executor costs against a plain loop. Prints the table of docs/limits.md
and, with --svg, draws its chart. Fails where a claim of that page does not hold. See bench/README.md."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20


class Penstock:
    def __init__(self, a):
        shape = [a.layers, a.width, a.heads, a.context, a.vocabulary, a.batch, a.threads, a.dropout]
        self.process = subprocess.Popen([a.program] + [str(value) for value in shape],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"limits: the program ended at '{' '.join(map(str, words))}'")
        return json.loads(line)


def limits_between(least, most, count):
    """Denser near the least, where the plans differ most."""
    shares = [(i / (count - 1)) ** 2 for i in range(count - 1)]
    return [least + round(share * (most - least)) for share in shares] + ["none"]


def measure(penstock, limit, a):
    plan = penstock.ask("plan", limit)
    penstock.ask("steps", 1)
    seconds, peak = [], 0
    for _ in range(a.rounds):
        turn = penstock.ask("steps", a.steps)
        seconds += turn["seconds"]
        peak = max(peak, turn["peak"])
    return {"limit": plan["activation_limit"] + plan["resident"] if limit != "none" else None,
            "predicted_peak": plan["predicted_peak"], "peak": peak,
            "predicted_s": plan["predicted_step_s"], "step_s": statistics.median(seconds),
            "again": plan["recomputed_forwards"], **penstock.ask("digest")}


def verdicts(rows):
    """What the page claims, each with the number behind it."""
    return {
        "peak above the limit": max((row["peak"] - row["limit"] for row in rows if row["limit"]), default=0),
        "peak off by at most": max(abs(row["predicted_peak"] / row["peak"] - 1) for row in rows),
        "seconds off by at most": max(abs(row["predicted_s"] / row["step_s"] - 1) for row in rows),
        "different losses": len({row["loss"] for row in rows}) - 1,
        "different gradients": len({row["gradients"] for row in rows}) - 1,
    }


def overhead(penstock, turns):
    """The executor with everything kept against a plain loop over the layers, step by step in turns."""
    penstock.ask("plan", "none")
    penstock.ask("overhead", 2)
    seconds = penstock.ask("overhead", turns)
    ratios = [a / b for a, b in zip(seconds["executor"], seconds["plain"])]
    return statistics.median(seconds["executor"]), statistics.median(seconds["plain"]), statistics.median(ratios)


def table(rows):
    lines = ["| limit MiB | predicted peak | measured peak | recomputed forwards | predicted step | measured step "
             "| ratio |",
             "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        limit = f"{row['limit'] / MIB:.1f}" if row["limit"] else "none"
        lines.append(f"| {limit} | {row['predicted_peak'] / MIB:.2f} | {row['peak'] / MIB:.2f} | {row['again']} "
                     f"| {1e3 * row['predicted_s']:.0f} ms | {1e3 * row['step_s']:.0f} ms "
                     f"| {row['predicted_s'] / row['step_s']:.3f} |")
    return "\n".join(lines)


def chart(rows):
    """Seconds of a step over the limit, predicted and measured."""
    width, height, left, bottom, top, right = 760, 380, 70, 50, 40, 20
    points = [(row["limit"] or row["peak"], row["predicted_s"], row["step_s"]) for row in rows]
    most_x, most_y = max(p[0] for p in points) * 1.02, max(max(p[1:]) for p in points) * 1.05
    least_x = min(p[0] for p in points) * 0.9

    def x(value):
        return left + (value - least_x) / (most_x - least_x) * (width - left - right)

    def y(value):
        return height - bottom - value / most_y * (height - bottom - top)

    def line(index, colour):
        path = " ".join(f"{x(p[0]):.1f},{y(p[index]):.1f}" for p in points)
        dots = "".join(f'<circle cx="{x(p[0]):.1f}" cy="{y(p[index]):.1f}" r="3.5" fill="{colour}"/>' for p in points)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'

    marks = []
    for mib in range(100, int(most_x / MIB) + 1, 100):
        if mib * MIB >= least_x:
            marks.append(f'<line x1="{x(mib * MIB):.1f}" x2="{x(mib * MIB):.1f}" y1="{top}" y2="{height - bottom}" '
                         f'stroke="#ddd"/><text x="{x(mib * MIB):.1f}" y="{height - bottom + 18}" '
                         f'text-anchor="middle">{mib}</text>')
    for second in range(int(most_y) + 1):
        marks.append(f'<line x1="{left}" x2="{width - right}" y1="{y(second):.1f}" y2="{y(second):.1f}" stroke="#ddd"/>'
                     f'<text x="{left - 8}" y="{y(second) + 4:.1f}" text-anchor="end">{second}</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            f'font-size="13" fill="#333"><rect width="{width}" height="{height}" fill="#fff"/>{"".join(marks)}'
            f'{line(1, "#555f6b")}{line(2, "#d55e00")}'
            f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">limit, MiB (the last point: none)</text>'
            f'<text x="{left}" y="{top - 16}">seconds a step</text>'
            f'<text x="{width - 220}" y="{top - 16}" fill="#555f6b">predicted</text>'
            f'<text x="{width - 130}" y="{top - 16}" fill="#d55e00">measured</text></svg>\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in dict(layers=12, width=256, heads=8, context=256, vocabulary=256, batch=8, threads=2,
                              rounds=3, steps=3, limits=10, turns=25).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--program", default=HERE.parent / "build/release/bench/penstock_bench_recompute")
    parser.add_argument("--json", help="also write the rows to this file")
    parser.add_argument("--svg", help="draw the chart into this file")
    parser.add_argument("--any-speed", action="store_true", help="seconds are shown, and fail nothing")
    a = parser.parse_args()
    penstock = Penstock(a)
    least = penstock.ask("plan", "least")["least_activation"]
    most = penstock.ask("plan", "none")["predicted_activation_peak"]
    rows = []
    for limit in limits_between(least, most, a.limits):
        rows.append(measure(penstock, limit, a))
        print(f"\r{len(rows)} of {a.limits} limits", end="", file=sys.stderr)
    print(file=sys.stderr)
    print(table(rows))
    found = verdicts(rows)
    for claim, value in found.items():
        print(f"{claim}: {value:.4g}")
    executor, plain, ratio = overhead(penstock, a.turns)
    print(f"executor {1e3 * executor:.1f} ms, plain loop {1e3 * plain:.1f} ms, median of {a.turns} ratios {ratio:.4f}")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(rows, indent=1) + "\n")
    if a.svg:
        pathlib.Path(a.svg).write_text(chart(rows))
    held = (found["peak above the limit"] <= 0 and found["peak off by at most"] <= 0.02 and
            found["different losses"] == 0 and found["different gradients"] == 0)
    is_fast = a.any_speed or (found["seconds off by at most"] <= 0.10 and ratio <= 1.02)
    sys.exit(0 if held and is_fast else 1)


if __name__ == "__main__":
    main()
