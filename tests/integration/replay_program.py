"""Replays a program from its JSON file: the peak of each rank's memory and the seconds of the step.

Uses nothing of Penstock, only the rules in docs/program.md.
"""

import json
import sys
from collections import defaultdict

TIERS = ("device", "host", "disk")
OUTERMOST_FIRST = ("pipeline", "data", "context", "tensor")


def tier_of(item):
    """Of [name, bytes], which may have slices and a tier after it, as in "@0-64/host"."""
    return (item[2] if len(item) > 2 else "").partition("/")[2] or "device"


def replay_memory(rank):
    """The most that each tier holds."""
    live, home = dict.fromkeys(TIERS, 0), {}

    def take(items):
        for item in items:
            home[item[0]] = (tier_of(item), item[1])
            live[tier_of(item)] += item[1]

    take(rank["hold"])
    take(rank["given"])
    peak = dict(live)
    for instruction in rank["instructions"]:
        # It works on the device. What it makes on another tier is there while it runs.
        peak["device"] = max(peak["device"], live["device"] + instruction.get("working", 0))
        take(instruction.get("makes", []))
        for tier in TIERS[1:]:
            peak[tier] = max(peak[tier], live[tier])
        for value in instruction.get("frees", []):
            tier, size = home[value]
            live[tier] -= size
    return peak


class Groups:
    """Which ranks gather, reduce and exchange together."""

    def __init__(self, program):
        self.groups, self.mesh = program.get("groups", []), program.get("mesh", {})
        self.lines = {}
        for rank in range(len(program["ranks"])):
            for index in range(len(self.groups)):
                self.line(rank, index).size += 1

    def coordinates(self, rank):
        found = {}
        for axis in reversed(OUTERMOST_FIRST):
            rank, found[axis] = divmod(rank, self.mesh.get(axis, 1))
        return found

    def line(self, rank, index):
        """Of the ranks that differ from this one on the group's axes alone."""
        group, place = self.groups[index], self.coordinates(rank)
        is_member = place["pipeline"] in group.get("stages", [place["pipeline"]])
        others = [place[axis] for axis in OUTERMOST_FIRST if axis not in group["axes"]]
        return self.lines.setdefault((index, is_member, *others), Line())


class Line:
    """What one group does together: the k-th of each rank meet."""

    def __init__(self):
        self.size, self.arrived, self.ends = 0, defaultdict(list), []
        self.free_at = 0.0

    def end(self, k):
        """Nothing, until all ranks of the group have come to it."""
        while len(self.ends) <= k:
            arrived = self.arrived[len(self.ends)]
            if len(arrived) < self.size:
                return None
            start = max(turn for turn, _, _ in arrived)
            is_on_line = arrived[0][2]
            if is_on_line:  # one after the other
                start = max(start, self.free_at)
            self.ends.append(start + max(seconds for _, seconds, _ in arrived))
            if is_on_line:
                self.free_at = self.ends[-1]
        return self.ends[k]


class Rank:
    """Goes through its list as far as what it knows of the others allows."""

    def __init__(self, number, rank, messages, groups):
        self.number, self.messages, self.groups = number, messages, groups
        self.left = list(rank["instructions"])
        # When a value is there as it is now, and until when it is read.
        self.ready = {item[0]: 0.0 for item in rank["hold"] + rank["given"]}
        self.read_until = defaultdict(float)
        self.free_at = defaultdict(float)  # when a resource is free
        self.sent = defaultdict(list)  # the messages that a value is in
        self.counts = defaultdict(int)  # of a channel's messages, and of a group's meetings, so far
        # Of values, what was started on a line: (group, k).
        self.changed_in, self.read_in = {}, {}
        self.stands = False  # at a gather or reduce that others have not come to
        self.last_end = 0.0

    def message(self, instruction):
        """The next one of the channel: a dict of when it was sent and received."""
        is_send = instruction["op"] == "send"
        value = instruction["reads"][0] if is_send else instruction["makes"][0][0]
        peer = int(instruction["on"].split(":")[1])
        ends = (self.number, peer) if is_send else (peer, self.number)
        channel = (*ends, value.split(".")[0])
        return channel, self.messages[channel, self.counts[channel]]

    def end_of(self, meeting):
        group, k = meeting
        return self.groups.line(self.number, group).end(k)

    def find_waits(self, instruction, reads, changes):
        """Whether all is known that it waits for; then `ready` and `read_until` say when."""
        own_line = instruction.get("group") if instruction.get("on", "").startswith("line") else None
        for value in instruction.get("frees", []):
            for message in self.sent[value]:
                if "received" not in message:
                    return False
                self.read_until[value] = max(self.read_until[value], message["received"])
        for value in reads + changes:
            meeting = self.changed_in.get(value)
            if meeting and meeting[0] != own_line:
                if self.end_of(meeting) is None:
                    return False
                self.ready[value] = self.end_of(meeting)
                del self.changed_in[value]
            meeting = self.read_in.get(value) if value in changes else None
            if meeting and meeting[0] != own_line:
                if self.end_of(meeting) is None:
                    return False
                self.read_until[value] = max(self.read_until[value], self.end_of(meeting))
        return True

    def run_next(self):
        """Whether the next instruction could run."""
        instruction = self.left[0]
        op, on = instruction["op"], instruction.get("on", "compute")
        reads, sets = instruction.get("reads", []), instruction.get("sets", [])
        changes = sets + instruction.get("updates", []) + instruction.get("frees", [])
        if op == "receive" and "to" not in self.message(instruction)[1]:
            return False
        if not self.find_waits(instruction, reads, changes):
            return False
        start = max([self.free_at[on]] + [self.ready[value] for value in reads])
        for value in changes:
            if value in self.ready:  # else it makes it itself
                start = max(start, self.ready[value], self.read_until[value])
        turn = max(start, self.free_at["compute"])
        end = start + instruction.get("seconds", 0.0)
        if op in ("gather", "reduce", "exchange", "merge"):
            end = self.meet(instruction, turn)
            if end is None:
                return on.startswith("line")
        if op in ("send", "receive"):
            channel, message = self.message(instruction)
            self.counts[channel] += 1
        if op == "send":
            message["to"] = end
            self.sent[reads[0]].append(message)
        if op == "receive":
            end = message["received"] = max(turn, message["to"])
        for value in reads:
            self.read_until[value] = max(self.read_until[value], end)
        made = [item[0] for item in instruction.get("makes", [])]
        self.ready.update(dict.fromkeys(made + sets + instruction.get("updates", []), end))
        self.free_at[on] = end
        self.last_end = max(self.last_end, end)
        self.left.pop(0)
        return True

    def meet(self, instruction, turn):
        """When it ends; nothing while that is not known, or where the rank goes on meanwhile."""
        group = instruction["group"]
        line, k = self.groups.line(self.number, group), self.counts[group]
        is_on_line = instruction["on"].startswith("line")
        if not self.stands:
            line.arrived[k].append((turn, instruction.get("seconds", 0.0), is_on_line))
        if is_on_line:
            made = [item[0] for item in instruction.get("makes", [])]
            changes = instruction.get("sets", []) + instruction.get("updates", [])
            self.changed_in.update(dict.fromkeys(made + changes, (group, k)))
            self.read_in.update(dict.fromkeys(instruction.get("reads", []), (group, k)))
            self.counts[group] += 1
            self.left.pop(0)
            return None
        self.stands = line.end(k) is None
        self.counts[group] += 0 if self.stands else 1
        return line.end(k)


def replay_time(program):
    messages, groups = defaultdict(dict), Groups(program)
    ranks = [Rank(number, rank, messages, groups) for number, rank in enumerate(program["ranks"])]
    while any(rank.left for rank in ranks):
        before = sum(len(rank.left) for rank in ranks)
        arrived = sum(rank.stands for rank in ranks)
        for rank in ranks:
            while rank.left and rank.run_next():
                pass
        after = sum(len(rank.left) for rank in ranks)
        has_come = sum(rank.stands for rank in ranks) > arrived
        assert after < before or has_come, "ranks wait for each other"
    ends = [rank.last_end for rank in ranks]
    for line in groups.lines.values():
        ends += [line.end(k) for k in range(len(line.arrived))]
    return max(ends, default=0.0)


with open(sys.argv[1], encoding="utf-8") as file:
    program = json.load(file)
assert program["penstock_program"] == 2, "another version"
peaks = [replay_memory(rank) for rank in program["ranks"]]
print(
    json.dumps(
        {
            "peak_bytes": max(peak["device"] for peak in peaks),
            "peaks": [peak["device"] for peak in peaks],
            "host_peaks": [peak["host"] for peak in peaks],
            "disk_peaks": [peak["disk"] for peak in peaks],
            "seconds": replay_time(program),
            "updates": program.get("updates", 1),
        }
    )
)
