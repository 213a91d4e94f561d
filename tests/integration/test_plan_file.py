"""A plan as a file: written, read, run by threads and processes with the losses of the run that makes its own plan, and
refused by the field where it is edited or made for something else."""

import re
import shutil
import subprocess
import unittest

import penstock_cli as cli

MPIRUN = shutil.which("mpirun")

RECIPE = {
    "model.layers": 2,
    "model.width": 48,
    "train.steps": 4,
    "train.batch": 16,
    "plan.micro_batches": 4,
    "plan.collectives": "direct",
    "run.validate_sequences": 10,
}
LAYOUTS = {
    "one rank": {},
    "pipeline": {"plan.pipeline": 2, "plan.schedule": "zb-h1"},
    "replicas": {"plan.data": 2, "plan.shard": "parameters"},
    "both": {"plan.pipeline": 2, "plan.data": 2, "plan.shard": "gradients"},
    "asynchronous": {
        "plan.pipeline": 2,
        "plan.schedule": "2bw",
        "plan.flush_every": 2,
        "train.clip": 0,
        "model.tied": "false",
    },
}


class PlanFileTestCase(cli.CliTestCase):
    def setUp(self):
        super().setUp()
        self.write_recipe(RECIPE)

    def plan(self, values, *flags):
        result = self.run_program(
            "plan", "recipe.toml", "--json", *cli.settings(values), *flags, "--out", "plan.toml"
        )
        self.assertEqual(result.code, 0, result)
        return result.json()

    def train(self, values, *flags):
        result = self.run_program("train", "recipe.toml", "--json", *cli.settings(values), *flags)
        self.assertEqual(result.code, 0, result)
        return result.json()


class RoundTrip(PlanFileTestCase):
    def test_every_layout(self):
        for name, values in LAYOUTS.items():
            with self.subTest(name):
                planned = self.plan(values)
                # What decides the numbers stays with the recipe; the plan says the rest.
                numbers = {key: value for key, value in values.items() if key[:5] != "plan."}
                found = self.train(numbers, "--plan", "plan.toml")
                expected = self.train(values)
                self.assertEqual(found["losses"], expected["losses"])
                self.assertEqual(found["validation_loss"], expected["validation_loss"])
                self.assertEqual(found["rank_peak_bytes"], found["predicted_rank_peak_bytes"])
                peaks = planned["peak_bytes"]
                self.assertEqual(
                    found["predicted_rank_peak_bytes"], peaks if type(peaks) is list else [peaks]
                )

    def test_limit(self):
        free = self.plan({})
        limit = (free["unlimited_peak_bytes"] * 3) // 4
        planned = self.plan({}, "--memory", limit)
        found = self.train({}, "--plan", "plan.toml")
        self.assertEqual(found["limit_bytes"], limit)
        self.assertEqual(found["peak_bytes"], planned["peak_bytes"])
        self.assertEqual(found["losses"], self.train({})["losses"])

    @unittest.skipIf(MPIRUN is None, "there is no mpirun")
    def test_processes(self):
        self.plan(LAYOUTS["both"])
        expected = self.train(LAYOUTS["both"])
        found = subprocess.run(
            [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "4", cli.PROGRAM, "train"]
            + ["recipe.toml", "--json", "--plan", "plan.toml"],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        self.assertEqual(found.returncode, 0, found)
        self.assertIn(f'"losses":{expected["losses"]}'.replace(" ", ""), found.stdout)


class Refusals(PlanFileTestCase):
    def assert_refused(self, *words, values={}, flags=()):
        result = self.run_program(
            "train", "recipe.toml", *cli.settings(values), "--plan", "plan.toml", *flags
        )
        self.assert_fails(result, *words)

    def test_edited_field(self):
        self.plan(LAYOUTS["pipeline"])
        text = (self.folder / "plan.toml").read_text()
        edited = re.sub(r"chunks = 2", "chunks = 3", text)
        (self.folder / "plan.toml").write_text(edited)
        self.assert_refused("plan.chunks", "changed", "[predicted]", "penstock plan --out")
        # On purpose: without what was predicted for another plan.
        (self.folder / "plan.toml").write_text(edited[: edited.index("\n[predicted]\n")])
        found = self.train({}, "--plan", "plan.toml")
        self.assertEqual(found["losses"], self.train(LAYOUTS["pipeline"])["losses"])

    def test_stale(self):
        self.plan(LAYOUTS["both"], "--memory", "1GiB")
        self.assert_refused("model.layers", "= 2", "recipe has 3", values={"model.layers": 3})
        self.assert_refused("train.batch", values={"train.batch": 32})
        self.assert_refused("plan.memory", '"1GiB"', flags=("--memory", "2GiB"))
        self.assert_refused("plan.data = 2", "recipe has 4", flags=("--data", 4))
        self.assert_refused("--ranks says 3 ranks", "the plan has 4", flags=("--ranks", 3))

    def test_other_ranks(self):
        self.plan(LAYOUTS["pipeline"])
        self.assert_refused("--ranks says 4 ranks", "the plan has 2", flags=("--ranks", 4))
        self.plan({})
        self.assert_refused("--ranks says 4 ranks", "the plan has 1", flags=("--ranks", 4))

    def test_numbers_that_do_not_go_with_the_plan(self):
        self.plan(LAYOUTS["asynchronous"])
        self.assert_refused("2bw", "train.clip", values={"model.tied": "false"})

    def test_own_costs(self):
        result = self.run_program("profile", "recipe.toml", "--out", "costs.json")
        self.assertEqual(result.code, 0, result)
        self.plan({}, "--costs", "costs.json")
        self.train({}, "--costs", "costs.json", "--plan", "plan.toml")

    def test_keys_without_use(self):
        self.plan({"plan.schedule": "gpipe"})
        self.train({"plan.schedule": "gpipe"}, "--plan", "plan.toml")

    def test_other_costs(self):
        self.plan({})
        result = self.run_program("profile", "recipe.toml", "--out", "other.json")
        self.assertEqual(result.code, 0, result)
        self.assert_refused("plan.costs = other.json", flags=("--costs", "other.json"))

    def test_files_that_are_none(self):
        (self.folder / "plan.toml").write_text("[plan]\npipeline = 2\n")
        self.assert_refused("plan.toml", "penstock.plan is missing")
        (self.folder / "plan.toml").unlink()
        self.assert_refused("plan.toml")
        result = self.run_program("plan", "--costs", "costs.json", "--out", "plan.toml")
        self.assert_fails(result, "--out", "--costs alone")


class Flags(cli.CliTestCase):
    def test_every_key_of_the_plan(self):
        keys = re.findall(r"plan\.([a-z_]+)", self.run_program("options").stdout)
        self.assertGreater(len(set(keys)), 15)
        for command in ("plan", "train", "simulate", "check"):
            text = self.run_program(command, "--help").stdout
            for key in set(keys):
                self.assertIn(f"--{key.replace('_', '-')} ", text, command)

    def test_a_value_that_is_none(self):
        self.write_recipe(RECIPE)
        for flag, value, words in (
            ("--shard", "weights", ("plan.shard", '"gradients"')),
            ("--data", "0", ("plan.data", "1 to 4096")),
            ("--keep-gathered", "maybe", ("plan.keep_gathered", "true or false")),
            ("--bucket", "", ("must not be empty",)),
        ):
            result = self.run_program("plan", "recipe.toml", flag, value)
            self.assert_fails(result, flag, *words)


if __name__ == "__main__":
    unittest.main()
