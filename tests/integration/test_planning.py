"""Planning as a user meets it: profile, plan, simulate, check, and training under a limit."""

import functools
import html.parser
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

import penstock_cli as cli

REPLAY_PROGRAM = cli.REPOSITORY / "tests" / "integration" / "replay_program.py"
OVERRIDES = {"model.layers": 3, "model.heads": 2, "model.dropout": 0.1}
LAYERS = 1 + 2 * OVERRIDES["model.layers"]  # an embedding, then attention and mlp of each block


def layer(forward, backward, input_bytes, output_bytes, saved_bytes, **more):
    return {
        "forward_s": forward,
        "backward_s": backward,
        "input_bytes": input_bytes,
        "output_bytes": output_bytes,
        "saved_bytes": saved_bytes,
        **more,
    }


HOMOGENEOUS = {"layers": [layer(1, 2, 1, 1, 3)] * 10}


def modes_of(costs):
    """[(name, forward_s, backward_s, saved, forward extra, backward extra)] of a layer."""
    return [
        (
            mode.get("name", "all"),
            mode.get("forward_s", costs["forward_s"]),
            mode["backward_s"],
            mode["saved_bytes"],
            mode.get("forward_extra_bytes", 0),
            mode.get("backward_extra_bytes", 0),
        )
        for mode in (costs, *costs.get("other_save_modes", []))
    ]


class Chain:
    """A cost table by the rules of the literature: sizes x, what is saved, transients. It shares
    nothing with the program. For tables whose backwards need the output."""

    def __init__(self, table):
        self.layers = table["layers"]
        self.count = len(self.layers)
        self.x = [self.layers[0]["input_bytes"]] + [each["output_bytes"] for each in self.layers]
        self.modes = [modes_of(each) for each in self.layers]
        self.loss_s = table.get("loss", {}).get("seconds", 0)
        self.loss_extra = table.get("loss", {}).get("extra_bytes", 0)
        self.targets = table.get("target_bytes", 0)
        self.residents = sum(each["bytes"] for each in table.get("residents", []))

    def replay(self, operations):
        """(peak, seconds) of a schedule, operation by operation. Asserts that each finds what it
        needs."""
        x, live, chosen = self.x, {("x", 0): self.x[0], "targets": self.targets}, {}
        held = peak = self.residents + sum(live.values())
        seconds = 0

        def run(time_s, transient, adds=(), frees=()):
            nonlocal held, peak, seconds
            seconds += time_s
            peak = max(peak, held + sum(size for _, size in adds) + transient)
            live.update(adds)
            for value in frees:
                assert value in live, value
                del live[value]
            held = self.residents + sum(live.values())

        for operation in operations:
            op, i = operation["op"], operation["layer"]
            assert ("x", i) in live or ("saved", i) in live, operation  # saved includes x
            own_input = [("x", i)] if ("x", i) in live else []
            if op == "forward_all":
                assert ("saved", i + 1) not in live, operation
                names = [mode[0] for mode in self.modes[i]]
                chosen[i] = self.modes[i][names.index(operation.get("save_mode", names[0]))]
                _, forward_s, _, saved, extra, _ = chosen[i]
                run(forward_s, extra, [(("saved", i + 1), saved)])
            elif op in ("forward_keep_input", "forward_drop"):
                extra = self.layers[i].get("forward_extra_bytes", 0)
                frees = [("x", i)] if op == "forward_drop" else []
                run(self.layers[i]["forward_s"], extra, [(("x", i + 1), x[i + 1])], frees)
            elif op == "loss":
                assert i == self.count, operation
                run(
                    self.loss_s,
                    self.loss_extra,
                    [(("gradient", i), x[i])],
                    [*own_input, "targets"],
                )
            else:
                assert op == "backward", operation
                _, _, backward_s, _, _, extra = chosen[i]
                frees = [("saved", i + 1), ("gradient", i + 1), *own_input]
                run(backward_s, extra, [(("gradient", i), x[i])], frees)
        assert set(live) == {("gradient", 0)}, live
        return peak, seconds

    def least_seconds(self, limit):
        """The recurrence of ROTOR: the fastest schedule of its kind, infinite where none fits."""
        x, last = [*self.x, 0], self.count

        @functools.lru_cache(maxsize=None)
        def cost(i, end, room):
            if i == last:
                return self.loss_s if room >= x[i] + self.loss_extra else math.inf
            best = math.inf
            for _, forward_s, backward_s, saved, forward_extra, backward_extra in self.modes[i]:
                need = max(
                    x[end + 1] + saved + forward_extra,
                    x[i] + x[i + 1] + saved + backward_extra,
                )
                if room >= need:
                    rest = cost(i + 1, end, room - saved) if i < end else 0
                    best = min(best, forward_s + backward_s + rest)
            sweep_s = sweep_need = 0
            for j in range(i + 1, end + 1):
                k = j - 1
                sweep_s += self.layers[k]["forward_s"]
                input_bytes = x[k] if k > i else 0
                extra = self.layers[k].get("forward_extra_bytes", 0)
                sweep_need = max(sweep_need, input_bytes + x[j] + extra)
                if room >= x[end + 1] + sweep_need:
                    best = min(best, sweep_s + cost(j, end, room - x[j]) + cost(i, k, room))
            return best

        return cost(0, last, limit - self.residents - x[0])

    def least_limit(self):
        low, high = 0, 1
        while math.isinf(self.least_seconds(high)):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if math.isinf(self.least_seconds(middle)):
                low = middle
            else:
                high = middle
        return high


def random_table(rng, unit=1):
    """2 to 6 layers. Whole seconds, so that sums are exact in any order."""

    def size(low, high):
        return rng.randint(low * unit, high * unit)

    sizes = [size(1, 5) for _ in range(rng.randint(3, 7))]
    layers = []
    for input_bytes, output_bytes in zip(sizes, sizes[1:]):
        row = layer(
            rng.randint(1, 9),
            rng.randint(1, 9),
            input_bytes,
            output_bytes,
            output_bytes + size(0, 8),
        )
        if rng.random() < 0.5:
            row["forward_extra_bytes"] = size(0, 4)
            row["backward_extra_bytes"] = size(0, 4)
        if rng.random() < 0.3:
            less = rng.randint(output_bytes, row["saved_bytes"])
            row["other_save_modes"] = [
                {
                    "name": "less",
                    "backward_s": row["backward_s"] + rng.randint(0, 3),
                    "saved_bytes": less,
                    "backward_extra_bytes": size(0, 4),
                }
            ]
        layers.append(row)
    table = {"layers": layers}
    if rng.random() < 0.5:
        table["loss"] = {"seconds": rng.randint(0, 5), "extra_bytes": size(0, 5)}
        table["residents"] = [{"name": "weights", "bytes": size(1, 50)}]
    return table


class Outline(html.parser.HTMLParser):
    """Tags that are closed as they were opened, and the page's data."""

    VOID = {"meta", "link", "br", "hr", "input", "img"}

    def __init__(self):
        super().__init__()
        self.open, self.data, self.seen = [], "", set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1][1].get("type") == "application/json":
            self.data += data


@functools.lru_cache(maxsize=None)
def measured():
    """The recipe's cost table, and the plan for it: measured once, so numbers do not move."""
    folder = cli.make_workspace(tempfile.mkdtemp(prefix="penstock-test-"), OVERRIDES)
    try:
        table = cli.run("profile", "recipe.toml", "--out", "costs.json", cwd=folder)
        assert table.code == 0, table
        planning = ["plan", "--costs", "costs.json", "--recompute", "rotor", "--json"]
        plan = cli.run(*planning, cwd=folder)
        assert plan.code == 0, plan
        return json.loads((folder / "costs.json").read_text()), plan.json()
    finally:
        shutil.rmtree(folder)


class PlanningTestCase(cli.CliTestCase):
    @classmethod
    def setUpClass(cls):
        cls.costs, plan = measured()
        cls.least, cls.unlimited = plan["least_memory_bytes"], plan["unlimited_peak_bytes"]

    def setUp(self):
        super().setUp()
        self.write_recipe(OVERRIDES)
        self.write_json("costs.json", self.costs)

    def write_json(self, name, value):
        (self.folder / name).write_text(json.dumps(value))

    def answer(self, *arguments, code=0):
        """The JSON that a command writes."""
        result = self.run_program(*arguments, "--json")
        self.assertEqual(result.code, code, result)
        self.assertEqual(result.errors(), [], result)
        return result.json()

    def text(self, *arguments, code=0):
        result = self.run_program(*arguments)
        self.assertEqual(result.code, code, result)
        self.assertEqual(result.errors(), [], result)
        return result.stdout

    def plan_table(self, table, *arguments, code=0):
        self.write_json("table.json", table)
        return self.answer("plan", "--costs", "table.json", *arguments, code=code)

    def plan_recipe(self, *arguments, code=0):
        return self.answer("plan", "recipe.toml", "--costs", "costs.json", *arguments, code=code)

    def middle(self):
        """A limit between what is needed at least and what keeping everything takes."""
        return (self.least + self.unlimited) // 2

    def assert_refused(self, arguments, *needles, code=2, **options):
        """Fails with one line, and leaves every file as it was."""
        before = cli.snapshot(self.folder)
        line = self.assert_fails(self.run_program(*arguments, **options), *needles, code=code)
        self.assertEqual(cli.snapshot(self.folder), before, "files changed")
        return line

    def replay_file(self, name):
        """What the script beside this one says about a program."""
        command = [sys.executable, str(REPLAY_PROGRAM), str(self.folder / name)]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    def assert_svg(self, name):
        root = xml.etree.ElementTree.parse(self.folder / name).getroot()
        self.assertTrue(root.tag.endswith("svg"), root.tag)
        return "".join(root.itertext())

    def assert_html(self, name):
        outline = Outline()
        outline.feed((self.folder / name).read_text())
        outline.close()
        self.assertEqual(outline.open, [])
        self.assertLessEqual({"html", "head", "title", "body", "script"}, outline.seen)
        return json.loads(outline.data)

    def trace_processes(self, name):
        """{process name: its spans}"""
        events = json.loads((self.folder / name).read_text())["traceEvents"]
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        spans = {process: [] for process in names.values()}
        for event in events:
            if event["ph"] == "X":
                spans[names[event["pid"]]].append(event)
        return spans


class GoldenTables(PlanningTestCase):
    def test_homogeneous_chain(self):
        for limit, seconds, operations in ((7, 75, 66), (8, 50, 41), (9, 45, 36), (15, 37, 28)):
            with self.subTest(limit=limit):
                plan = self.plan_table(HOMOGENEOUS, "--memory", limit)
                self.assertIs(plan["feasible"], True)
                self.assertEqual(plan["recompute"], "rotor")
                self.assertEqual(plan["limit_bytes"], limit)
                self.assertEqual(plan["time_s"], seconds)
                self.assertEqual(plan["step_s"], seconds)
                self.assertEqual(len(plan["operations"]), operations)
                self.assertLessEqual(plan["peak_bytes"], limit)
                self.assertEqual(plan["least_memory_bytes"], 7)
                replayed = Chain(HOMOGENEOUS).replay(plan["operations"])
                self.assertEqual(replayed, (plan["peak_bytes"], seconds))

    def test_homogeneous_chain_that_does_not_fit(self):
        plan = self.plan_table(HOMOGENEOUS, "--memory", 6, code=1)
        self.assertIs(plan["feasible"], False)
        self.assertEqual(plan["least_memory_bytes"], 7)
        self.assertEqual(plan["binding"], "backward of layer 9, micro-batch 0")
        self.assertEqual(plan["operations"], [])
        for key in ("time_s", "step_s", "peak_bytes"):
            self.assertIsNone(plan[key])
        self.assertEqual(plan["unlimited_step_s"], 30)
        self.assertEqual(plan["unlimited_peak_bytes"], 1 + 10 * 3 + 2)
        self.assertEqual([change["feasible"] for change in plan["changes"]], [False])

    def test_chain_whose_optimum_does_not_keep(self):
        # The true optimum is 58, by a schedule that drops what it had stored; persistent ones
        # reach 60.
        sizes, saved = (3, 1, 3, 1, 2), (2, 3, 6, 7)
        table = {
            "layers": [
                layer(f, b, sizes[i], sizes[i + 1], saved[i])
                for i, (f, b) in enumerate(zip((2, 4, 6, 2), (4, 6, 9, 9)))
            ]
        }
        plan = self.plan_table(table, "--memory", 16)
        self.assertEqual(plan["time_s"], 60)
        peak, seconds = Chain(table).replay(plan["operations"])
        self.assertEqual((peak, seconds), (plan["peak_bytes"], 60))
        self.assertLessEqual(peak, 16)

    def test_limits_with_units(self):
        for text, limit in (("1KiB", 1024), ("1 kB", 1000), ("0.5KiB", 512), ("33", 33)):
            plan = self.plan_table(HOMOGENEOUS, "--memory", text)
            self.assertEqual((plan["limit_bytes"], plan["time_s"]), (limit, 30))

    def test_no_limit(self):
        plan = self.plan_table(HOMOGENEOUS)
        self.assertEqual(plan["recompute"], "none")
        self.assertEqual((plan["limit_bytes"], plan["time_s"], plan["peak_bytes"]), (0, 30, 33))

    def test_micro_batches_of_a_table(self):
        table = {**HOMOGENEOUS, "clear_s": 1, "step_s": 2}
        plan = self.plan_table(table, "--memory", 12, "--micro-batches", 4)
        # The others' inputs wait: 9 bytes for each.
        self.assertEqual((plan["time_s"], plan["step_s"]), (45, 4 * 45 + 3))
        self.assertEqual(plan["peak_bytes"], 12)

    def test_fewer_slots_never_break_the_limit(self):
        chain = Chain(HOMOGENEOUS)
        for slots in (1, 3):
            plan = self.plan_table(HOMOGENEOUS, "--memory", 9, "--slots", slots)
            self.assertIs(plan["feasible"], True)
            self.assertGreaterEqual(plan["time_s"], 45)
            self.assertLessEqual(chain.replay(plan["operations"])[0], 9)


class RandomTables(PlanningTestCase):
    def assert_planned(self, table, limit, chain):
        plan = self.plan_table(table, "--memory", limit)
        peak, seconds = chain.replay(plan["operations"])
        self.assertEqual((plan["peak_bytes"], plan["time_s"]), (peak, seconds))
        self.assertLessEqual(peak, limit)
        self.assertEqual(plan["time_s"], chain.least_seconds(limit))
        return plan

    def test_replay_in_python_agrees(self):
        rng = random.Random(20260)
        for number in range(30):
            table = random_table(rng)
            chain = Chain(table)
            least = chain.least_limit()
            with self.subTest(number=number, least=least, table=table):
                limit = least + rng.choice((0, 1, 2, rng.randint(0, 20)))
                plan = self.assert_planned(table, limit, chain)
                self.assertEqual(plan["least_memory_bytes"], least)

    def test_simple_recomputation_replays_too(self):
        rng = random.Random(7)
        for recompute in ("none", "all", "sqrt"):
            table = random_table(rng)
            plan = self.plan_table(table, "--recompute", recompute)
            replayed = Chain(table).replay(plan["operations"])
            self.assertEqual(replayed, (plan["peak_bytes"], plan["time_s"]))
            self.assertEqual(plan["least_memory_bytes"], plan["peak_bytes"])

    def test_large_odd_sizes_are_exact(self):
        rng = random.Random(3)
        for number in range(4):
            table = random_table(rng, unit=rng.choice((1_000_003, 123_456_789_011)))
            chain = Chain(table)
            least = chain.least_limit()
            with self.subTest(number=number, least=least, table=table):
                plan = self.assert_planned(table, least, chain)
                self.assertEqual((plan["least_memory_bytes"], plan["peak_bytes"]), (least, least))
                below = self.plan_table(table, "--memory", least - 1, code=1)
                self.assertEqual(below["least_memory_bytes"], least)

    def test_targets_and_the_optimizer_count(self):
        table = {
            **HOMOGENEOUS,
            "target_bytes": 5,
            "residents": [{"name": "weights", "bytes": 100}],
            "step_extra_bytes": 400,
        }
        plan = self.plan_table(table, "--memory", 500)
        self.assertEqual((plan["least_memory_bytes"], plan["peak_bytes"]), (500, 500))
        self.assertEqual(plan["binding"], "step")
        plan = self.plan_table({**table, "step_extra_bytes": 0}, "--recompute", "none")
        # Everything is kept when the loss comes: 1 + 10 * 3, and it adds a gradient of 1.
        self.assertEqual(plan["peak_bytes"], 100 + 5 + 31 + 1)


class ProgramFiles(PlanningTestCase):
    def assert_program(self, plan, name):
        step = self.answer("simulate", name)
        self.assertAlmostEqual(step["step"], plan["step_s"], delta=1e-9 * plan["step_s"])
        (rank,) = step["ranks"]
        self.assertEqual(rank["peak_bytes"], plan["peak_bytes"])
        self.assertEqual(rank["limit_bytes"], plan["limit_bytes"])
        self.assertAlmostEqual(rank["compute_occupancy"], 1)
        if name.endswith(".json"):
            replayed = self.replay_file(name)
            self.assertEqual(replayed["peak_bytes"], plan["peak_bytes"])
            self.assertAlmostEqual(replayed["seconds"], plan["step_s"], delta=1e-9 * plan["step_s"])

    def test_program_of_a_table(self):
        for name in ("step.txt", "step.json"):
            plan = self.plan_table(HOMOGENEOUS, "--memory", 8, "--program", name)
            self.assert_program(plan, name)
        self.assertTrue((self.folder / "step.txt").read_text().startswith("penstock-program 2\n"))

    def test_program_of_a_recipe(self):
        parts = ("--micro-batches", 2)
        self.text("profile", "recipe.toml", "--out", "half.json", "--set", "plan.micro_batches=2")
        for name in ("step.txt", "step.json"):
            plan = self.answer(
                *("plan", "recipe.toml", "--costs", "half.json", "--memory", self.least),
                *(*parts, "--program", name),
            )
            self.assert_program(plan, name)

    def test_one_form_becomes_the_other(self):
        plan = self.plan_table(HOMOGENEOUS, "--memory", 9, "--program", "step.txt")
        self.text("simulate", "step.txt", "--program", "step.json")
        self.assert_program(plan, "step.json")
        self.text("simulate", "step.json", "--program", "again.txt")
        self.assert_same_file("step.txt", "again.txt")

    def test_nothing_is_written_when_it_does_not_fit(self):
        result = self.run_program(
            *("plan", "recipe.toml", "--costs", "costs.json"),
            *("--memory", self.least - 1, "--program", "step.txt"),
        )
        self.assertEqual(result.code, 1, result)
        self.assertFalse((self.folder / "step.txt").exists())

    def assert_unsound(self, arguments, before, after, *needles):
        self.plan_table(HOMOGENEOUS, *arguments, "--program", "step.txt")
        text = (self.folder / "step.txt").read_text()
        self.assertEqual(text.count(before), 1, text)
        (self.folder / "step.txt").write_text(text.replace(before, after))
        return self.assert_refused(
            ["simulate", "step.txt"], "step.txt", "instruction", *needles, code=1
        )

    def test_unsound_program_names_instruction_and_value(self):
        recompute = ("--recompute", "all")
        self.assert_unsound(recompute, "loss mb=0", "drop frees=x10.0\nloss mb=0", "loss", "x10.0")
        self.assert_unsound(recompute, "frees=t.0,x10.0", "frees=t.0", "x10.0")
        self.assert_unsound(
            ("--memory", 8), "limit=8", "limit=7", "layer 9", "8 bytes", "limit of 7", "s9.0"
        )

    def test_what_is_no_program(self):
        (self.folder / "binary").write_bytes(bytes(range(256)) * 10)
        (self.folder / "empty").write_text("")
        (self.folder / "old.txt").write_text("penstock-program 1\nmicro-batches 1\n")
        (self.folder / "folder").mkdir()
        for name, needle in (
            ("corpus.txt", "penstock-program 2"),
            ("old.txt", 'version "1"; this Penstock reads version 2'),
            ("binary", "binary:1"),
            ("empty", "empty:1"),
            ("folder", "not a regular file"),
            ("nowhere.txt", "No such file"),
            ("costs.json", "penstock_program is missing"),
        ):
            self.assert_refused(["simulate", name], name, needle)
        self.plan_table(HOMOGENEOUS, "--program", "step.txt")
        whole = (self.folder / "step.txt").read_text()
        (self.folder / "step.txt").write_text(whole.replace("seconds=1", "seconds=soon", 1))
        self.assert_refused(["simulate", "step.txt"], "step.txt:", "seconds")

    def test_options_that_a_program_cannot_take(self):
        self.plan_table(HOMOGENEOUS, "--memory", 8, "--program", "step.txt")
        for option, value in (
            ("--memory", "100"),
            ("--recompute", "all"),
            ("--micro-batches", "2"),
            ("--slots", "5"),
            ("--costs", "table.json"),
            ("--set", "train.steps=2"),
        ):
            self.assert_refused(["simulate", "step.txt", option, value], "step.txt", option)


class Profile(PlanningTestCase):
    def test_text(self):
        text = self.text("profile", "recipe.toml")
        for needle in ("gpt2, 3 layers", "embedding", "block 0 attention", "block 0 mlp", "head"):
            self.assertIn(needle, text)
        self.assertNotIn("block 1", text)  # of the same kind

    def test_json_is_the_file(self):
        result = self.run_program("profile", "recipe.toml", "--json", "--out", "made.json")
        self.assertEqual(result.code, 0, result)
        self.assertEqual(result.stdout, (self.folder / "made.json").read_text())
        table = result.json()
        self.assertEqual(len(table["layers"]), LAYERS)
        # Bytes are exact: the same in every measurement.
        for made, before in zip(table["layers"], self.costs["layers"]):
            for key, value in before.items():
                if key.endswith("_bytes"):
                    self.assertEqual(made[key], value, f"{key} of {made['name']}")
                elif key.endswith("_s"):
                    self.assertGreater(made[key], 0, f"{key} of {made['name']}")
        self.assertEqual(table["residents"], self.costs["residents"])
        self.assertEqual(cli.temporaries(self.folder), [])

    def test_writes_nothing_else(self):
        before = cli.snapshot(self.folder)
        self.text("profile", "recipe.toml", "--set", "data.path=nowhere")
        self.assertEqual(cli.snapshot(self.folder), before)
        self.assertFalse((self.folder / "out").exists())


class PlanRecipe(PlanningTestCase):
    def test_measures_where_there_is_no_table(self):
        # Bytes do not depend on the clock.
        plan = self.answer("plan", "recipe.toml", "--recompute", "rotor")
        self.assertEqual(plan["least_memory_bytes"], self.least)
        self.assertEqual(plan["unlimited_peak_bytes"], self.unlimited)

    def test_text_without_a_limit(self):
        text = self.text("plan", "recipe.toml", "--costs", "costs.json")
        self.assertTrue(text.startswith("gpt2, 3 layers, width 32, micro-batches of 4 x 32"), text)
        for row in ("embedding", "block 0 attention", "block 2 mlp", "head"):
            self.assertEqual(len(re.findall(f"^{row} ", text, re.MULTILINE)), 1, text)
        for needle in (
            "none, 0 forwards recomputed",
            "no limit",
            f"{self.unlimited:,} bytes",
            "0.0 % over keeping everything",
        ):
            self.assertIn(needle, text)

    def test_text_with_a_limit(self):
        text = self.text("plan", "recipe.toml", "--costs", "costs.json", "--memory", self.least)
        self.assertRegex(text, r"rotor, \d+ forwards recomputed")
        self.assertIn("recomputed, then ", text)
        self.assertIn(" allowed\n", text)
        self.assertIn(f"({self.least:,} bytes); ", text)

    def test_json_without_a_limit(self):
        plan = self.plan_recipe()
        self.assertEqual((plan["feasible"], plan["recompute"]), (True, "none"))
        self.assertEqual((plan["limit_bytes"], plan["peak_bytes"]), (0, self.unlimited))
        self.assertEqual(plan["step_s"], plan["unlimited_step_s"])
        kinds = [operation["op"] for operation in plan["operations"]]
        self.assertEqual(kinds, ["forward_all"] * LAYERS + ["loss"] + ["backward"] * LAYERS)

    def test_json_with_a_limit(self):
        plan = self.plan_recipe("--memory", self.middle())
        self.assertEqual((plan["feasible"], plan["recompute"]), (True, "rotor"))
        self.assertLessEqual(plan["peak_bytes"], self.middle())
        self.assertEqual(plan["least_memory_bytes"], self.least)
        self.assertGreater(plan["step_s"], plan["time_s"])

    def test_less_memory_is_never_faster(self):
        steps = [
            self.plan_recipe("--memory", limit)["step_s"]
            for limit in (self.least, self.middle(), self.unlimited)
        ]
        self.assertEqual(steps, sorted(steps, reverse=True))

    def test_least_limit_is_exact(self):
        self.assertEqual(self.plan_recipe("--memory", self.least)["peak_bytes"], self.least)
        plan = self.plan_recipe("--memory", self.least - 1, code=1)
        self.assertIs(plan["feasible"], False)
        self.assertEqual(plan["least_memory_bytes"], self.least)
        changes = {change["change"]: change for change in plan["changes"]}
        self.assertEqual(
            set(changes), {"plan.micro_batches = 2", 'train.precision = "bfloat16"'}
        )
        halved = changes["plan.micro_batches = 2"]
        self.assertIs(halved["feasible"], True)
        # And the change does what it promises.
        changed = self.answer(
            *("plan", "recipe.toml", "--memory", halved["least_memory_bytes"]),
            *("--micro-batches", "2"),
        )
        self.assertEqual(changed["least_memory_bytes"], halved["least_memory_bytes"])

    def test_certificate_fits_on_a_screen(self):
        certificate = ["plan", "recipe.toml", "--costs", "costs.json", "--memory"]
        text = self.text(*certificate, self.least - 1, code=1)
        lines = text.splitlines()
        self.assertLessEqual(len(lines), 24, text)
        self.assertLessEqual(max(map(len, lines)), 120, text)
        binding = self.plan_recipe("--memory", self.least)["binding"]
        for needle in (
            "does not fit",
            f"{self.least - 1:,} bytes are allowed",
            f"{self.least:,} bytes",
            binding,
            f'plan.memory = "{self.least}"',
            "plan.micro_batches = 2",
            'train.precision = "bfloat16"',
        ):
            self.assertIn(needle, text)

    def test_certificate_of_what_does_not_recompute(self):
        text = self.text(
            *("plan", "recipe.toml", "--costs", "costs.json", "--recompute", "none"),
            *("--memory", self.unlimited - 1),
            code=1,
        )
        self.assertIn(f"{self.unlimited:,} bytes", text)
        self.assertRegex(text, r'plan.recompute = "rotor" .* yes ')
        self.assertLessEqual(len(text.splitlines()), 24)

    def test_recompute(self):
        forwards = {}
        for how in ("none", "all", "sqrt", "rotor"):
            plan = self.plan_recipe("--recompute", how)
            self.assertEqual(plan["recompute"], how)
            again = self.answer(
                *("plan", "recipe.toml", "--set", "plan.costs=costs.json"),
                *("--set", f"plan.recompute={how}"),
            )
            for one in (again, plan):
                one.pop("planning")  # its seconds differ
            self.assertEqual(again, plan)
            kinds = [operation["op"] for operation in plan["operations"]]
            self.assertEqual(kinds.count("backward"), LAYERS)
            forwards[how] = len(kinds) - LAYERS - 1
        self.assertEqual((forwards["none"], forwards["all"]), (LAYERS, 2 * LAYERS))
        self.assertTrue(LAYERS < forwards["sqrt"] < 2 * LAYERS)
        self.assertEqual(forwards["rotor"], LAYERS)  # there is no limit

    def test_needs_no_data_and_writes_nothing(self):
        before = cli.snapshot(self.folder)
        self.plan_recipe("--set", "data.path=nowhere")
        self.assertEqual(cli.snapshot(self.folder), before)
        self.assertFalse((self.folder / "out").exists())


class TrainUnderALimit(PlanningTestCase):
    MODEL = "step-00000006/model.safetensors"

    def limited(self, limit, values=None, *flags):
        return self.train(
            {"plan.costs": "costs.json", **(values or {})}, "--memory", limit, *flags
        )

    def test_least_limit_gives_the_same_bits(self):
        free = self.train({"run.out": "free"})
        self.assertEqual((free["limit_bytes"], free["predicted_peak_bytes"]), (0, None))
        tight = self.limited(self.least, {"run.out": "tight"})
        self.assertEqual(tight["losses"], free["losses"])
        self.assertEqual(tight["validation_loss"], free["validation_loss"])
        self.assert_same_file(f"free/{self.MODEL}", f"tight/{self.MODEL}")
        self.assertEqual(tight["limit_bytes"], self.least)
        self.assertEqual(tight["predicted_peak_bytes"], self.least)
        self.assertGreater(tight["predicted_step_seconds"], 0)
        self.assertGreater(tight["step_seconds"], 0)
        self.assertGreater(free["peak_bytes"], self.least)

    def test_a_run_never_holds_more_than_its_limit(self):
        # Measuring, loading, validating and sampling included. With a long context a layer that
        # keeps everything takes far more than the plan's layers do.
        long = {"model.context": 256, "run.sample_tokens": 20}
        least = self.answer("plan", "recipe.toml", "--recompute", "rotor", *cli.settings(long))
        for limit, values in (
            (self.least, {"plan.costs": "costs.json"}),
            (self.least, {"run.sample_tokens": 20}),
            (self.middle(), {}),
            (least["least_memory_bytes"], long),
        ):
            with self.subTest(limit=limit, values=values):
                done = self.train({**values, "run.out": f"out{limit}"}, "--memory", limit)
                self.assertLessEqual(done["peak_bytes"], limit)

    def test_every_kind_of_recomputation_gives_the_same_bits(self):
        losses = [
            self.train({"plan.recompute": how, "run.out": how})["losses"]
            for how in ("none", "all", "sqrt", "rotor")
        ]
        self.assertEqual(losses[1:], losses[:1] * 3)
        for how in ("all", "sqrt", "rotor"):
            self.assert_same_file(f"none/{self.MODEL}", f"{how}/{self.MODEL}")

    def test_resumed_under_a_limit(self):
        straight = self.train({"run.out": "straight", "train.schedule": "constant"})
        values = {"train.schedule": "constant"}
        self.limited(self.least, {**values, "train.steps": 4})
        resumed = self.limited(self.least, values, "--resume", "out")
        self.assertEqual(resumed["losses"], straight["losses"][4:])
        self.assert_same_file(f"straight/{self.MODEL}", f"out/{self.MODEL}")

    def test_limit_in_the_recipe(self):
        limit = {"plan.memory": f"{self.least} ", "plan.costs": "costs.json"}
        self.write_recipe({**OVERRIDES, **limit})
        self.assertEqual(self.train()["limit_bytes"], self.least)
        # The command line wins.
        self.assertEqual(self.train({}, "--memory", "1GiB")["limit_bytes"], 1 << 30)

    def test_below_the_least_limit_nothing_is_touched(self):
        for out in ("new", "done"):
            if out == "done":
                self.train({"run.out": out, "train.steps": 2})
            values = {"run.out": out, "plan.costs": "costs.json"}
            self.assert_refused(
                ["train", "recipe.toml", *cli.settings(values), "--memory", self.least - 1],
                "does not fit",
                f"{self.least - 1:,}",
                f"{self.least:,}",
                self.plan_recipe("--memory", self.least)["binding"],
                "penstock plan",
                code=1,
            )
            self.assertEqual(cli.temporaries(self.folder), [])

    def test_text_says_predicted_and_limit(self):
        result = self.run_program("train", "recipe.toml", "--memory", self.middle())
        self.assertEqual(result.code, 0, result)
        self.assertRegex(result.stdout, r"peak memory .*, predicted .*, limit ")
        self.assertRegex(result.stdout, r"step .*, predicted ")
        self.assertRegex(result.stderr, r"(?m)^plan: rotor, \d+ forwards? recomputed; peak ")

    def test_pictures_show_measured_beside_predicted(self):
        pictures = ["--svg", "step.svg", "--html", "step.html", "--trace", "trace.json"]
        result = self.run_program(
            *("train", "recipe.toml", "--set", "plan.costs=costs.json", "--json"),
            *("--memory", self.least, *pictures),
        )
        self.assertEqual(result.code, 0, result)
        self.assertIn("measured", self.assert_svg("step.svg"))
        self.assertIn("measured", json.dumps(self.assert_html("step.html")))
        processes = self.trace_processes("trace.json")
        self.assertEqual(set(processes), {"rank 0 predicted", "rank 0 measured"})
        predicted, measured = processes["rank 0 predicted"], processes["rank 0 measured"]
        self.assertEqual([s["name"] for s in measured], [s["name"] for s in predicted])
        for spans in (predicted, measured):
            most = max(span["args"]["bytes_during"] for span in spans)
            self.assertEqual(most, self.least)
        self.assertIn("step, beginning to end", result.stderr)
        self.assertEqual(cli.temporaries(self.folder), [])

    def test_pictures_need_no_limit(self):
        summary = self.train({}, "--trace", "trace.json")
        self.assertEqual(len(self.trace_processes("trace.json")), 2)
        self.assertEqual(summary["predicted_peak_bytes"], self.unlimited)


class WrongTables(PlanningTestCase):
    """Cost tables that are not those of the model."""

    def understate(self, change):
        """A table that believes in less, and a limit between what it believes and the truth."""
        table = json.loads(json.dumps(self.costs))
        change(table)
        believed = self.plan_table(table, "--recompute", "rotor")["least_memory_bytes"]
        self.assertLess(believed, self.least)
        return (believed + self.least) // 2

    def assert_found_out(self, limit, field, owner):
        """Before the first step, with the numbers."""
        for command in (
            ["train", "recipe.toml", "--set", "plan.costs=table.json", "--memory", limit],
            ["plan", "recipe.toml", "--costs", "table.json", "--memory", limit],
        ):
            line = self.assert_refused(command, "table.json", "penstock profile", code=1)
            promised, needed, allowed, said, found = (
                int(re.search(pattern + r"([\d,]*\d)", line)[1].replace(",", ""))
                for pattern in (
                    "a peak of ",
                    "the same plan needs ",
                    "over the limit of ",
                    r"_bytes = ",
                    "_bytes = .*measured ",
                )
            )
            self.assertLessEqual(promised, limit)
            self.assertGreater(needed, limit)
            self.assertEqual(allowed, limit)
            self.assertGreater(found, said)
            self.assertIn(field, line)
            self.assertRegex(line, owner)
        self.assertEqual(cli.checkpoint_steps(self.folder / "out"), [])

    def test_saved_bytes_and_transients_understated(self):
        def change(table):
            for row in table["layers"][1:]:
                for mode in (row, *row.get("other_save_modes", [])):
                    mode["saved_bytes"] = row["output_bytes"]
                    mode["forward_extra_bytes"] = mode["recompute_extra_bytes"] = 0
                    mode["backward_extra_bytes"] = 0
                row["dropping_extra_bytes"] = 0
            table["loss"]["extra_bytes"] = 0

        self.assert_found_out(
            self.understate(change), "dropping_extra_bytes = 0", "block 0 attention has"
        )

    def test_only_saved_and_backward_understated(self):
        def change(table):
            for row in table["layers"][1:]:
                for mode in (row, *row.get("other_save_modes", [])):
                    mode["saved_bytes"] = row["output_bytes"]
                    mode["backward_extra_bytes"] = 0
            table["loss"]["extra_bytes"] //= 2

        self.assert_found_out(
            # The first in the order of the plan, which may begin by keeping a later layer.
            self.understate(change), "saved_bytes = 16,384", r"block \d (attention|mlp), save mode [\w-]+, has"
        )

    def test_loss_understated(self):
        limit = self.understate(lambda table: table["loss"].update(extra_bytes=0))
        self.assert_found_out(limit, "extra_bytes = 0", "the loss")

    def test_the_gradient_of_the_loss_understated(self):
        limit = self.understate(lambda table: table["layers"][-1].update(output_gradient_bytes=0))
        self.assert_found_out(limit, "output_gradient_bytes = 0", "block")

    def test_ranks_are_found_out_too(self):
        for values in (
            {"plan.pipeline": 2, "plan.micro_batches": 2, "plan.schedule": "1f1b"},
            {"plan.data": 2, "plan.shard": "optimizer"},
        ):
            with self.subTest(values=values):
                values = {**values, "plan.recompute": "none"}
                settings = cli.settings(values)
                profile = self.run_program("profile", "recipe.toml", "--out", "own.json", *settings)
                self.assertEqual(profile.code, 0, profile)
                table = json.loads((self.folder / "own.json").read_text())
                honest = self.answer("plan", "recipe.toml", "--costs", "own.json", *settings)
                for row in table["layers"][1:]:
                    for mode in (row, *row.get("other_save_modes", [])):
                        mode["saved_bytes"] = row["output_bytes"]
                        mode["backward_extra_bytes"] = 0
                table["loss"]["extra_bytes"] = 0
                self.write_json("table.json", table)
                limit = max(honest["peak_bytes"]) - 1
                line = self.assert_refused(
                    ["train", "recipe.toml", "--costs", "table.json", *settings, "--memory", limit],
                    "table.json promises a peak of ",
                    " bytes on rank ",
                    f"over the limit of {limit:,}",
                    "penstock profile",
                    code=1,
                )
                self.assertRegex(line, "_bytes = [0-9,]+, measured ")

    def test_harmless_understatement_goes_through(self):
        limit = self.understate(lambda table: table["loss"].update(extra_bytes=0))
        self.assertLess(limit, self.least)
        done = self.train({"plan.costs": "table.json"}, "--memory", 2 * self.unlimited)
        self.assertGreaterEqual(done["predicted_peak_bytes"], done["peak_bytes"])

    def assert_other_model(self, values, *needles):
        limit = ["--memory", "1GiB"]
        set_values = cli.settings({**values, "plan.costs": "costs.json"})
        for command in ("train", "plan", "check"):
            line = self.assert_refused(
                [command, "recipe.toml", *set_values, *limit], "costs.json", *needles
            )
            self.assertIn("penstock profile", line)

    def test_other_number_of_layers(self):
        self.assert_other_model({"model.layers": 2}, "7 layers", "the model has 5")

    def test_other_width(self):
        self.assert_other_model({"model.width": 64}, "layer 0", "16,384 bytes", "32,768 bytes")

    def test_other_micro_batches(self):
        self.assert_other_model({"plan.micro_batches": 2}, "layer 0", "16,384 bytes", "8,192 bytes")

    def test_what_is_no_table(self):
        (self.folder / "binary").write_bytes(bytes(range(256)))
        (self.folder / "folder").mkdir()
        self.write_json("list.json", [1, 2])
        self.write_json("bare.json", {"layers": []})
        self.write_json("slip.json", {"layers": [{**layer(1, 2, 1, 1, 3), "save_bytes": 3}]})
        self.write_json("less.json", {"layers": [layer(1, 2, 1, 3, 1)]})
        self.write_json("apart.json", {"layers": [layer(1, 2, 1, 1, 3), layer(1, 2, 2, 1, 3)]})
        for name, *needles in (
            ("nowhere.json", "No such file"),
            ("corpus.txt", "not valid JSON"),
            ("binary", "binary"),
            ("folder", "not a regular file"),
            ("list.json", "not an object"),
            ("bare.json", "0 layers"),
            ("slip.json", "layer 0", "save_bytes", "did you mean saved_bytes?"),
            ("less.json", "layer 0", "saved_bytes = 1", "output_bytes = 3"),
            ("apart.json", "layer 1", "input_bytes = 2", "output_bytes = 1"),
        ):
            self.assert_refused(["plan", "--costs", name], name, *needles)
        for command in (
            ["plan", "recipe.toml", "--costs", "nowhere.json"],
            ["simulate", "--costs", "nowhere.json"],
            ["train", "recipe.toml", "--memory", "1GiB", "--set", "plan.costs=nowhere.json"],
            ["check", "recipe.toml", "--set", "plan.costs=nowhere.json"],
        ):
            self.assert_refused(command, "nowhere.json", "No such file")


class Check(PlanningTestCase):
    def test_json(self):
        report = self.answer("check", "recipe.toml", "--memory", self.least)
        self.assertIs(report["equal"], True)
        self.assertEqual(report["steps"], 3)
        self.assertIsNone(report["first_difference"])
        self.assertGreater(report["tensors"], 3 * 2 * LAYERS)
        self.assertTrue(4 < report["loss"] < 6)
        self.assertLessEqual(report["peak_bytes"], self.least)
        self.assertEqual(report["predicted_peak_bytes"], self.least)
        self.assertEqual(report["limit_bytes"], self.least)
        self.assertEqual(report["loss"], self.train()["losses"][2])

    def test_steps(self):
        values = ["--set", "plan.costs=costs.json", "--memory", self.middle()]
        one = self.answer("check", "recipe.toml", *values, "--steps", 1)
        five = self.answer("check", "recipe.toml", *values, "--steps", 5)
        self.assertEqual((one["steps"], five["steps"]), (1, 5))
        self.assertGreater(five["tensors"], 3 * one["tensors"])

    def test_text(self):
        text = self.text("check", "recipe.toml", "--recompute", "sqrt", "--micro-batches", 2)
        self.assertIn("does not change a bit", text)
        self.assertIn("of 3 steps", text)

    def test_writes_no_run(self):
        self.text("check", "recipe.toml", "--recompute", "all", "--program", "step.json")
        self.assertFalse((self.folder / "out").exists())
        self.assertEqual(self.answer("simulate", "step.json")["ranks"][0]["limit_bytes"], 0)

    def test_below_the_least_limit(self):
        self.assert_refused(
            ["check", "recipe.toml", "--memory", self.least - 1],
            "does not fit",
            f"{self.least:,}",
            code=1,
        )


class Simulate(PlanningTestCase):
    PICTURES = ("--svg", "step.svg", "--html", "step.html", "--trace", "trace.json")

    def test_recipe_and_table_agree(self):
        limit = ["--memory", self.middle()]
        plan = self.plan_recipe(*limit)
        for source in (["recipe.toml", "--costs", "costs.json"], ["--costs", "costs.json"]):
            step = self.answer("simulate", *source, *limit)
            self.assertAlmostEqual(step["step"], plan["step_s"], delta=1e-9)
            self.assertEqual(step["ranks"][0]["peak_bytes"], plan["peak_bytes"])
            # After them come squares, decide and step; where the model is known, the shares of its
            # tied table are added, too.
            more = 4 if "recipe.toml" in source else 3
            self.assertEqual(step["ranks"][0]["instructions"], len(plan["operations"]) + more)

    def test_recipe_alone(self):
        step = self.answer("simulate", "recipe.toml")
        self.assertEqual(step["ranks"][0]["peak_bytes"], self.unlimited)
        self.assertGreater(step["step"], 0)

    def test_text(self):
        text = self.text("simulate", "--costs", "costs.json", "--memory", self.least)
        for needle in ("; rotor within ", "1 block 0 attention", "of it recomputed", "step, beginning to end"):
            self.assertIn(needle, text)

    def assert_pictures(self):
        self.assertIn("predicted", self.assert_svg("step.svg"))
        self.assert_html("step.html")
        (process,) = self.trace_processes("trace.json")
        self.assertEqual(process, "rank 0 predicted")
        self.assertEqual(cli.temporaries(self.folder), [])

    def test_pictures(self):
        self.write_json("table.json", HOMOGENEOUS)
        self.text(
            *("simulate", "--costs", "table.json", "--memory", 8, "--program", "step.txt"),
            *self.PICTURES,
        )
        self.assert_pictures()
        for name in self.PICTURES[1::2]:
            os.remove(self.folder / name)
        self.text("simulate", "step.txt", *self.PICTURES)
        self.assert_pictures()

    def test_names_that_need_escapes(self):
        name = """a <b> & "c" 'd' </script> \\ é"""
        self.write_json(
            "table.json",
            {"description": name, "layers": [{**layer(1, 2, 1, 1, 3), "name": name}] * 2},
        )
        self.text("simulate", "--costs", "table.json", "--program", "step.json", *self.PICTURES)
        self.assertIn(name, self.assert_svg("step.svg"))
        self.assertIn(name, self.assert_html("step.html")["title"])
        self.assert_pictures()
        self.text("simulate", "step.json", "--program", "step.txt")
        self.assertIn(name, self.text("simulate", "step.txt"))

    def test_does_not_fit(self):
        self.write_json("table.json", HOMOGENEOUS)
        for source in (["--costs", "table.json"], ["recipe.toml"]):
            self.assert_refused(
                ["simulate", *source, "--memory", "6B", *self.PICTURES], "does not fit", code=1
            )


    def test_what_is_alive_at_the_peak(self):
        limit = ("--memory", self.least)
        step = self.answer("simulate", "--costs", "costs.json", *limit, "--peak")
        (rank,) = step["ranks"]
        alive = rank["alive_at_peak"]
        self.assertEqual(sum(one["bytes"] for one in alive), rank["peak_bytes"])
        self.assertEqual(alive, sorted(alive, key=lambda one: -one["bytes"]))
        for one in alive:
            self.assertEqual(set(one), {"value", "what", "of", "micro_batch", "bytes"})
        self.assertNotIn("alive_at_peak", self.answer("simulate", "--costs", "costs.json")["ranks"][0])
        text = self.text("simulate", "--costs", "costs.json", *limit, "--peak")
        self.assertIn("rank 0 holds most, ", text)
        self.assertIn("working memory", text)
        self.assertNotIn("holds most", self.text("simulate", "--costs", "costs.json"))


class Compare(PlanningTestCase):
    """Two programs side by side."""

    def setUp(self):
        super().setUp()
        self.write_json("table.json", HOMOGENEOUS)
        for name, memory in (("small.txt", 8), ("large.json", 1000)):
            self.text(
                *("simulate", "--costs", "table.json", "--memory", memory, "--program", name)
            )

    def test_json(self):
        answer = self.answer("simulate", "small.txt", "--compare", "large.json")
        for side, name in (("a", "small.txt"), ("b", "large.json")):
            alone = self.answer("simulate", name)
            figures = answer[side]
            self.assertEqual(figures["title"], name)
            self.assertEqual(figures["step"], alone["step"])
            self.assertEqual(figures["peak_bytes"], [alone["ranks"][0]["peak_bytes"]])
            self.assertEqual(
                sum(figures["instructions"].values()), alone["ranks"][0]["instructions"]
            )
        self.assertGreater(answer["a"]["recomputed_forwards"], 0)
        self.assertEqual(answer["b"]["recomputed_forwards"], 0)

    def test_text_and_pictures(self):
        text = self.text(
            *("simulate", "small.txt", "--compare", "large.json"),
            *("--svg", "both.svg", "--html", "both.html"),
        )
        self.assertTrue(text.startswith("A: small.txt\nB: large.json\n"), text)
        for needle in ("B - A", "peak of rank 0", "recomputed forwards", "of them forward"):
            self.assertIn(needle, text)
        svg = self.assert_svg("both.svg")
        self.assertIn("A: small.txt", svg)
        self.assertIn("B: large.json", svg)
        page = self.assert_html("both.html")
        self.assertEqual(len(page["steps"]), 2)
        self.assertEqual(page["differences"]["headings"][1:3], ["A", "B"])

    def test_a_recipe_beside_itself_under_a_limit(self):
        answer = self.answer(
            *("simulate", "recipe.toml", "--costs", "costs.json", "--memory", self.least),
            *("--compare", "recipe.toml"),
        )
        self.assertEqual(answer["a"]["peak_bytes"], [self.least])
        self.assertEqual(answer["b"]["peak_bytes"], [self.unlimited])

    def test_what_does_not_go_together(self):
        compare = ["simulate", "small.txt", "--compare", "large.json"]
        self.assert_refused([*compare, "--trace", "both.json"], "--trace", "--compare")
        self.assert_refused([*compare, "--peak"], "--peak", "--compare")
        self.assert_refused([*compare, "--memory", "6"], "small.txt", "--memory")
        self.assert_refused(["simulate", "small.txt", "--compare", "nowhere.txt"], "nowhere.txt")
        self.assert_refused(["simulate", "small.txt", "--compare", ""], "--compare", "empty")
        self.assert_refused(["simulate", "--compare", "small.txt"], "recipe", "--costs")
        bare = ["simulate", "--schedule", "gpipe", "--ranks", 2, "--micro-batches", 4]
        bare += ["--forward", 1, "--backward", 2]
        self.assert_refused([*bare, "--compare", "small.txt"], "--compare", "--program")
        self.assert_refused([*bare, "--peak"], "--peak", "bare numbers")
        self.text(*bare, "--program", "bare.json")
        self.assert_refused(["simulate", "bare.json", "--peak"], "--peak", "bare.json")
        for pair in (("small.txt", "bare.json"), ("bare.json", "small.txt")):
            self.assert_refused(
                ["simulate", pair[0], "--compare", pair[1]], "bare.json", "bare numbers"
            )

    def test_bare_numbers_have_no_units(self):
        for schedule in ("gpipe", "zb-h1"):
            self.text(
                *("simulate", "--schedule", schedule, "--ranks", 4, "--micro-batches", 8),
                *("--forward", 1, "--backward", 2, "--program", schedule + ".txt"),
                *("--svg", schedule + ".svg", "--html", schedule + ".html"),
            )
        self.assertIn("step 33 predicted", self.assert_svg("gpipe.svg"))
        self.assertTrue(self.assert_html("gpipe.html")["is_bare"])
        text = self.text("simulate", "gpipe.txt", "--compare", "zb-h1.txt")
        self.assertRegex(text, r"step +33 +27 +-6 +0\.82")
        self.assertNotIn("peak", text)


class BadInput(PlanningTestCase):
    def test_limits_that_are_none(self):
        commands = (
            ["plan", "--costs", "costs.json"],
            ["train", "recipe.toml"],
            ["simulate", "recipe.toml"],
            ["check", "recipe.toml"],
        )
        limits = ("0", "-5", "12XB", "1e99GiB", "nan", "9223372036854775808")
        tried = [(command, "") for command in commands] + [
            (commands[i % 2], limit) for i, limit in enumerate(limits)
        ]
        for command, limit in tried:
            self.assert_refused([*command, "--memory", limit], "--memory", "bytes", "600MiB")
        self.assert_refused(
            ["plan", "recipe.toml", "--set", "plan.memory=12XB"], "plan.memory", "12XB", "600MiB"
        )

    def test_unknown_recomputation(self):
        kinds = ("auto", "none", "all", "sqrt", "rotor")
        for source in (["recipe.toml"], ["--costs", "costs.json"]):
            for how in ("some", ""):
                arguments = ["plan", *source, "--recompute", how]
                self.assert_refused(arguments, "--recompute", how, *kinds)
        for command in ("plan", "train", "check"):
            self.assert_refused(
                [command, "recipe.toml", "--set", "plan.recompute=some"],
                "plan.recompute",
                "some",
                *kinds,
            )

    def test_nothing_to_plan(self):
        for command in ("plan", "simulate"):
            self.assert_refused([command, "--memory", "1GiB"], "recipe", "--costs")
        for command in ("check", "profile"):
            self.assert_refused([command], "RECIPE")

    def test_settings_without_a_recipe(self):
        for command in ("plan", "simulate"):
            self.assert_refused(
                [command, "--costs", "costs.json", "--set", "train.batch=2"], "--set", "--costs"
            )

    def test_files_that_cannot_be_written(self):
        (self.folder / "folder").mkdir()
        missing = ("no/folder/x", "there is no folder")
        folder = ("folder", "not a regular file")
        table = ["--costs", "costs.json"]
        for command, (name, needle) in (
            (["plan", *table, "--program"], missing),
            (["simulate", *table, "--program"], folder),
            (["check", "recipe.toml", "--program"], missing),
            (["simulate", *table, "--svg"], missing),
            (["simulate", *table, "--html"], missing),
            (["simulate", *table, "--trace"], folder),
            (["train", "recipe.toml", "--svg"], missing),
            (["train", "recipe.toml", "--trace"], folder),
            (["profile", "recipe.toml", "--out"], missing),
            (["profile", "recipe.toml", "--out"], folder),
        ):
            line = self.assert_refused([*command, name], "cannot write", name, needle)
            self.assertNotIn(".tmp", line)
        self.assertFalse((self.folder / "out").exists(), "found out after training")

    def test_devices_are_not_replaced(self):
        self.assert_refused(
            ["simulate", "--costs", "costs.json", "--svg", "/dev/null"], "/dev/null", "regular file"
        )
        self.assertFalse(os.path.isfile("/dev/null"))

    def test_names_that_are_empty(self):
        for command in (
            ["plan", "recipe.toml", "--costs", ""],
            ["plan", "--costs", "costs.json", "--program", ""],
            ["simulate", "--costs", "costs.json", "--svg", ""],
            ["profile", "recipe.toml", "--out", ""],
            ["train", "recipe.toml", "--trace", ""],
            ["train", "recipe.toml", "--resume", ""],
        ):
            self.assert_refused(command, command[-2], "empty")

    def test_numbers_out_of_range(self):
        self.assert_refused(["check", "recipe.toml", "--steps", "0"], "--steps", "0")
        for option in ("--micro-batches", "--slots"):
            for value in ("0", "-1", "many"):
                self.assert_refused(["plan", "--costs", "costs.json", option, value], option, value)

    def test_micro_batches_that_do_not_divide(self):
        for command in ("plan", "simulate", "check"):
            self.assert_refused(
                [command, "recipe.toml", "--micro-batches", "3"],
                "train.batch = 4",
                "plan.micro_batches = 3",
                "try plan.micro_batches = 2",
            )

    def test_missing_recipe(self):
        for command in ("plan", "simulate", "check", "profile"):
            self.assert_refused([command, "nowhere.toml"], "nowhere.toml", "does not exist")

    def test_ctrl_c_ends_a_long_plan(self):
        layers = [layer(1, 2, 10007, 10007, 30011 + 2 * (i % 7)) for i in range(1000)]
        self.write_json("table.json", {"layers": layers})
        arguments = ["plan", "--costs", "table.json", "--memory", "1MB", "--json"]
        process = cli.start(*arguments, cwd=self.folder)
        time.sleep(1)
        self.assertIsNone(process.poll(), "the plan was too short for this test")
        process.send_signal(signal.SIGINT)
        result = cli.finish(process, arguments, timeout=20)
        self.assertEqual((result.code, result.stdout), (-signal.SIGINT, ""))


# Only what holds the tests is a test itself.
del PlanningTestCase

if __name__ == "__main__":
    cli.main()
