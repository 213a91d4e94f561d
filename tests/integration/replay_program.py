"""Replays a program from its JSON file: the peak of each rank's memory and the seconds of the step.

Uses nothing of Penstock, only the rules in docs/program.md.
"""

import json
import sys
from collections import defaultdict


def replay_memory(rank):
    live = sum(size for _, size in rank["residents"]) + sum(size for _, size in rank["given"])
    peak, sizes = live, dict(rank["given"])
    for instruction in rank["instructions"]:
        made = dict(instruction.get("makes", []))
        peak = max(peak, live + instruction.get("working", 0))
        sizes.update(made)
        live += sum(made.values()) - sum(sizes[value] for value in instruction.get("frees", []))
    return peak


class ReplicaLine:
    """Between the replicas of a stage: the k-th gather or reduce of each meet, one after the other."""

    def __init__(self, replicas):
        self.replicas, self.arrived, self.ends = replicas, defaultdict(list), []

    def end(self, k):
        """Nothing, until all replicas have come to it."""
        while len(self.ends) <= k:
            arrived = self.arrived[len(self.ends)]
            if len(arrived) < self.replicas:
                return None
            start = max([turn for turn, _ in arrived] + self.ends[-1:])
            self.ends.append(start + max(seconds for _, seconds in arrived))
        return self.ends[k]


class Rank:
    """Goes through its list as far as what it knows of the others allows."""

    def __init__(self, number, rank, messages, steps_together, line):
        self.number, self.messages, self.steps_together = number, messages, steps_together
        self.line, self.collectives = line, 0  # those that it has come to
        self.made_in, self.read_in = {}, {}  # values of gathers and reduces, and which
        self.left = list(rank["instructions"])
        self.ready = {value: 0.0 for value, _ in rank["given"]}  # when a value is there
        self.free_at = defaultdict(float)  # when a resource is free
        self.sent = defaultdict(list)  # the messages that a value is in
        self.counts = defaultdict(int)  # of a channel's messages so far

    def message(self, instruction):
        """The next one of the channel: a dict of when it was sent (from, to) and received."""
        is_send = instruction["op"] == "send"
        value = instruction["reads"][0] if is_send else instruction["makes"][0][0]
        peer = int(instruction["on"].split(":")[1])
        ends = (self.number, peer) if is_send else (peer, self.number)
        channel = (*ends, value.split(".")[0])
        return channel, self.messages[channel, self.counts[channel]]

    def is_at_step(self):
        """Where it waits for the other ranks."""
        return self.steps_together and bool(self.left) and self.left[0]["op"] == "step"

    def can_run(self, step_from):
        instruction = self.left[0]
        if self.is_at_step() and step_from is None:
            return False
        if instruction["op"] == "receive" and "to" not in self.message(instruction)[1]:
            return False
        freed = instruction.get("frees", [])
        met = [self.made_in[v] for v in instruction.get("reads", []) + freed if v in self.made_in]
        met += [self.read_in[value] for value in freed if value in self.read_in]
        if any(self.line.end(k) is None for k in met):
            return False
        return all("received" in message for value in freed for message in self.sent[value])

    def run(self, step_from):
        waits_for_all = self.is_at_step()
        instruction = self.left.pop(0)
        op, on = instruction["op"], instruction.get("on", "compute")
        made = [value for value, _ in instruction.get("makes", [])]
        freed = instruction.get("frees", [])
        used = [value for value in instruction.get("reads", []) + freed if value not in made]
        for value in used:
            if value in self.made_in:
                self.ready[value] = self.line.end(self.made_in[value])
        start = max([self.free_at[on]] + [self.ready[value] for value in used])
        for value in freed:
            start = max([start] + [message["received"] for message in self.sent[value]])
            if value in self.read_in:
                start = max(start, self.line.end(self.read_in[value]))
        if op in ("gather", "reduce"):
            turn = max(start, self.free_at["compute"])
            self.line.arrived[self.collectives].append((turn, instruction.get("seconds", 0.0)))
            self.made_in.update(dict.fromkeys(made, self.collectives))
            self.read_in.update(dict.fromkeys(instruction.get("reads", []), self.collectives))
            self.collectives += 1
            return
        if waits_for_all:
            start = max(start, step_from)
        end = start + instruction.get("seconds", 0.0)
        if op in ("send", "receive"):
            channel, message = self.message(instruction)
            self.counts[channel] += 1
        if op == "send":
            message.update({"from": start, "to": end})
            self.sent[instruction["reads"][0]].append(message)
        if op == "receive":
            end = message["received"] = max(start, self.free_at["compute"], message["to"])
        self.free_at[on] = end
        self.ready.update(dict.fromkeys(made, end))


def replay_time(ranks, updates, replicas):
    messages = defaultdict(dict)
    lines = [ReplicaLine(replicas) for _ in range(len(ranks) // replicas)]  # by stage
    all_ranks = [
        Rank(number, rank, messages, updates == 1, lines[number // replicas])
        for number, rank in enumerate(ranks)
    ]
    while any(rank.left for rank in all_ranks):
        before = sum(len(rank.left) for rank in all_ranks)
        step_from = None
        if all(rank.is_at_step() for rank in all_ranks):
            step_from = max(rank.free_at["compute"] for rank in all_ranks)
        for rank in all_ranks:
            while rank.left and rank.can_run(step_from):
                rank.run(step_from)
        assert sum(len(rank.left) for rank in all_ranks) < before, "ranks wait for each other"
    ends = [end for rank in all_ranks for end in rank.free_at.values()]
    for rank in all_ranks:
        ends += [rank.line.end(k) for k in range(rank.collectives)]
    return max(ends, default=0.0)


with open(sys.argv[1], encoding="utf-8") as file:
    program = json.load(file)
ranks, updates = program["ranks"], program.get("updates", 1)
peaks = [replay_memory(rank) for rank in ranks]
print(
    json.dumps(
        {
            "peak_bytes": max(peaks),
            "peaks": peaks,
            "seconds": replay_time(ranks, updates, program.get("replicas", 1)),
            "updates": updates,
        }
    )
)
