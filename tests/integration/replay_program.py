"""Replays a one-rank program from its JSON file: the peak of memory and the seconds of the step.

Uses nothing of Penstock, only the two rules in docs/program.md.
"""

import json
import sys


def replay(rank):
    live = sum(size for _, size in rank["residents"]) + sum(size for _, size in rank["given"])
    peak, sizes = live, dict(rank["given"])
    ready, free_at = dict.fromkeys(sizes, 0.0), {}  # when a value is there, a resource is free
    for instruction in rank["instructions"]:
        made, freed = dict(instruction.get("makes", [])), instruction.get("frees", [])
        peak = max(peak, live + instruction.get("working", 0))
        sizes.update(made)
        live += sum(made.values()) - sum(sizes[value] for value in freed)
        used = [value for value in instruction.get("reads", []) + freed if value not in made]
        on = instruction.get("on", "compute")
        start = max([free_at.get(on, 0.0)] + [ready[value] for value in used])
        free_at[on] = start + instruction.get("seconds", 0.0)
        ready.update(dict.fromkeys(made, free_at[on]))
    return {"peak_bytes": peak, "seconds": max(free_at.values(), default=0.0)}


with open(sys.argv[1], encoding="utf-8") as file:
    ranks = json.load(file)["ranks"]
assert len(ranks) == 1, "one rank, please"
print(json.dumps(replay(ranks[0])))
