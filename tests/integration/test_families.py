"""Families beside GPT-2, through the real program: the same bits under every plan, checkpoints in
Hugging Face's layout, and what is said where options do not fit the family."""

import json
import shutil

import penstock_cli as cli

LLAMA = {
    "model.family": "llama",
    "model.layers": 3,
    "model.width": 48,
    "model.heads": 6,
    "model.kv_heads": 2,
    "model.hidden": 96,
    "model.context": 32,
    "model.tied": False,
    "model.rope_factor": 4.0,
    "model.rope_context": 16,
    "train.steps": 12,
    "train.batch": 8,
    "train.lr": 3e-3,
    "run.save_every": 6,
    "run.log": "none",
}
HALF, LAST = "step-00000006", "step-00000012"
SHARDS = ("none", "optimizer", "gradients", "parameters")


class FamiliesTestCase(cli.CliTestCase):
    def assert_refused(self, arguments, *words):
        self.assert_fails(self.run_program(*arguments), *words)


class Llama(FamiliesTestCase):
    def setUp(self):
        super().setUp()
        self.write_recipe(LLAMA)

    def alone(self, values=None):
        return self.train({"run.out": "alone", **(values or {})})

    def same_as_alone(self, values, alone):
        shutil.rmtree(self.folder / "other", ignore_errors=True)
        found = self.train({"run.out": "other", **values})
        self.assertEqual(found["losses"], alone["losses"])
        self.assertEqual(found["validation_loss"], alone["validation_loss"])
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assert_same_file(f"other/{LAST}/{name}", f"alone/{LAST}/{name}")
        return found

    def test_learns(self):
        found = self.alone({"train.steps": 60})
        self.assertLess(found["losses"][-1], 0.7 * found["losses"][0])

    def assert_close(self, found, expected, allowed):
        for ours, theirs in zip(found, expected, strict=True):
            self.assertAlmostEqual(ours / theirs, 1, delta=allowed)

    def plan(self, values, *flags, code=0):
        result = self.run_program("plan", "recipe.toml", "--json", *cli.settings(values), *flags)
        self.assertEqual(result.code, code, result)
        return result.json()

    def least_and_most(self, values):
        """Of memory, for each rank: what the step can do with, and what it takes where there is no limit."""
        least = self.plan({**values, "plan.memory": "1B"}, code=1)["least_memory_bytes"]
        most = self.plan(values)["peak_bytes"]
        if not isinstance(least, list):
            least, most = [least], [most]
        self.assertLess(max(least), 0.9 * max(most))
        return max(least), max(most)

    def with_costs(self, values):
        """The same, and a cost table for them, so that their runs do not measure each for itself."""
        costs = "-".join(["costs", *map(str, values.values())]) + ".json"
        result = self.run_program(
            "profile", "recipe.toml", "--out", costs, *cli.settings(values)
        )
        self.assertEqual(result.code, 0, result)
        return {**values, "plan.costs": costs}

    def test_schedules_and_recomputation_change_no_bit(self):
        for precision in ("float32", "bfloat16"):
            shutil.rmtree(self.folder / "alone", ignore_errors=True)
            base = self.with_costs({"train.precision": precision, "plan.micro_batches": 4})
            alone = self.alone(base)
            for values in (
                {"plan.recompute": "all"},
                {"plan.pipeline": 2, "plan.schedule": "gpipe"},
                {"plan.pipeline": 2, "plan.schedule": "1f1b"},
                {"plan.pipeline": 2, "plan.schedule": "interleaved"},
                {"plan.pipeline": 3, "plan.schedule": "zb-h1"},
                {"plan.pipeline": 3, "plan.schedule": "zb-h2"},
                {"plan.pipeline": 2, "plan.schedule": "zb-v"},
            ):
                with self.subTest(precision=precision, **values):
                    self.same_as_alone({**base, **values}, alone)

    def test_limits_change_no_bit_and_are_kept(self):
        for precision in ("float32", "bfloat16"):
            shutil.rmtree(self.folder / "alone", ignore_errors=True)
            base = self.with_costs({"train.precision": precision, "plan.micro_batches": 2})
            least, most = self.least_and_most(base)
            alone = self.alone(base)
            self.assertEqual(alone["peak_bytes"], most)
            for limit in (least, least + (most - least) // 3, most - (most - least) // 3, most - 1):
                with self.subTest(precision=precision, limit=limit):
                    found = self.same_as_alone({**base, "plan.memory": limit}, alone)
                    self.assertLessEqual(found["peak_bytes"], limit)
                    self.assertEqual(found["rank_peak_bytes"], found["predicted_rank_peak_bytes"])
            self.plan({**base, "plan.memory": least - 1}, code=1)

    def test_limits_of_pipelines_change_no_bit_and_are_kept(self):
        base = self.with_costs({"plan.micro_batches": 4})
        alone = self.alone(base)
        for schedule in ("1f1b", "zb-v"):
            values = {**base, "plan.pipeline": 2, "plan.schedule": schedule}
            least, most = self.least_and_most(values)
            for limit in (least, (least + most) // 2):
                with self.subTest(schedule=schedule, limit=limit):
                    found = self.same_as_alone({**values, "plan.memory": limit}, alone)
                    self.assertLessEqual(max(found["rank_peak_bytes"]), limit)

    def test_replicas_stay_near_one_device(self):
        alone = self.alone()
        for shard in SHARDS:
            with self.subTest(shard=shard):
                shutil.rmtree(self.folder / "other", ignore_errors=True)
                found = self.train(
                    {"run.out": "other", "plan.data": 2, "plan.shard": shard}
                )
                self.assert_close(found["losses"], alone["losses"], allowed=1e-5)

    def test_resumes_bit_for_bit(self):
        alone = self.alone()
        shutil.copytree(self.folder / "alone" / HALF, self.folder / "half" / HALF)
        resumed = self.train({"run.out": "other"}, "--resume", f"half/{HALF}")
        self.assertEqual(resumed["losses"], alone["losses"][6:])

    def test_resumes_under_any_layout(self):
        base = {"plan.collectives": "direct"}
        saved = {"plan.pipeline": 2, "plan.data": 2, "plan.shard": "parameters", "plan.micro_batches": 2}
        whole = self.alone({**base, **saved})
        for layout in (
            {"plan.micro_batches": 4},
            {"plan.pipeline": 3, "plan.schedule": "zb-h1", "plan.micro_batches": 4},
            {"plan.data": 4, "plan.shard": "gradients"},
            {"plan.pipeline": 2, "plan.data": 2, "plan.shard": "optimizer", "plan.micro_batches": 2},
        ):
            with self.subTest(**layout):
                shutil.rmtree(self.folder / "other", ignore_errors=True)
                resumed = self.train(
                    {**base, **layout, "run.out": "other"}, "--resume", f"alone/{HALF}"
                )
                self.assertEqual(resumed["first_step"], 6)
                self.assert_close(resumed["losses"], whole["losses"][6:], allowed=1e-6)

    def test_pipelines_resume_each_other_bit_for_bit(self):
        base = self.with_costs({"plan.micro_batches": 4})
        alone = self.alone(base)
        self.train({**base, "run.out": "piped", "plan.pipeline": 3, "plan.schedule": "zb-h2"})
        for values in ({}, {"plan.pipeline": 2, "plan.schedule": "zb-v"}):
            with self.subTest(**values):
                shutil.rmtree(self.folder / "other", ignore_errors=True)
                resumed = self.train(
                    {**base, **values, "run.out": "other"}, "--resume", f"piped/{HALF}"
                )
                self.assertEqual(resumed["losses"], alone["losses"][6:])
                for name in ("model.safetensors", "optimizer.safetensors"):
                    self.assert_same_file(f"other/{LAST}/{name}", f"alone/{LAST}/{name}")

    def test_check_finds_no_difference(self):
        least, most = self.least_and_most({})
        replicas = {"plan.data": 2, "plan.collectives": "direct"}
        for values in (
            {"plan.recompute": "all"},
            {"plan.memory": (least + most) // 2},
            {"plan.pipeline": 2, "plan.micro_batches": 4},
            {"plan.pipeline": 2, "plan.micro_batches": 4, "plan.schedule": "zb-v", "model.tied": True},
            *({**replicas, "plan.shard": shard} for shard in SHARDS),
            {**replicas, "plan.shard": "parameters", "plan.pipeline": 2, "plan.micro_batches": 2},
        ):
            with self.subTest(**values):
                result = self.run_program(
                    "check", "recipe.toml", "--json", *cli.settings(values)
                )
                self.assertEqual(result.code, 0, result)
                self.assertTrue(result.json()["equal"], result)
                self.assertIsNone(result.json().get("tolerance"), result)

    def test_peaks_are_those_predicted(self):
        for values in ({}, {"plan.pipeline": 2, "plan.micro_batches": 4}):
            with self.subTest(**values):
                shutil.rmtree(self.folder / "alone", ignore_errors=True)
                found = self.alone({"plan.memory": "64MiB", **values})
                self.assertEqual(found["rank_peak_bytes"], found["predicted_rank_peak_bytes"])

    def shapes_of(self, file):
        data = (self.folder / file).read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return {
            name: entry["shape"] for name, entry in header.items() if name != "__metadata__"
        }

    def test_tensors_have_hugging_faces_names_and_shapes(self):
        expected = {"model.embed_tokens.weight": [256, 48], "model.norm.weight": [48]}
        for block in range(3):
            prefix = f"model.layers.{block}."
            expected |= {
                prefix + "input_layernorm.weight": [48],
                prefix + "self_attn.q_proj.weight": [48, 48],
                prefix + "self_attn.k_proj.weight": [16, 48],
                prefix + "self_attn.v_proj.weight": [16, 48],
                prefix + "self_attn.o_proj.weight": [48, 48],
                prefix + "post_attention_layernorm.weight": [48],
                prefix + "mlp.gate_proj.weight": [96, 48],
                prefix + "mlp.up_proj.weight": [96, 48],
                prefix + "mlp.down_proj.weight": [48, 96],
            }
        for tied in (True, False):
            shutil.rmtree(self.folder / "alone", ignore_errors=True)
            self.alone({"model.tied": tied, "train.steps": 1})
            found = self.shapes_of("alone/step-00000001/model.safetensors")
            head = {} if tied else {"lm_head.weight": [256, 48]}
            self.assertEqual(found, {**expected, **head})

    def test_a_tied_head_changes_no_bit_in_a_pipeline(self):
        base = {"model.tied": True, "plan.micro_batches": 4}
        alone = self.alone(base)
        for schedule in ("1f1b", "zb-v"):
            with self.subTest(schedule=schedule):
                values = {"plan.pipeline": 2, "plan.schedule": schedule}
                self.same_as_alone({**base, **values}, alone)

    def test_samples(self):
        self.alone()
        result = self.run_program("sample", "alone", "--prompt", "ab", "--tokens", "20")
        self.assertEqual(result.code, 0, result)
        self.assertTrue(result.stdout.startswith("ab"), result)

    def test_another_rotation_does_not_resume(self):
        self.alone()
        result = self.run_program(
            *("train", "recipe.toml", "--resume", "alone"),
            *cli.settings({"model.rope_factor": 8.0, "run.out": "other"}),
        )
        self.assert_fails(result, "model.rope_factor", "cannot resume from")

    def test_checkpoints_are_hugging_faces(self):
        self.alone()
        config = json.loads((self.folder / "alone" / LAST / "config.json").read_text())
        self.assertEqual(config["architectures"], ["LlamaForCausalLM"])
        self.assertEqual(config["num_key_value_heads"], 2)
        self.assertEqual(config["rope_scaling"]["rope_type"], "llama3")
        weights = {"model.weights": f"alone/{LAST}"}
        self.train({"run.out": "on", "train.steps": 1, **weights})
        self.assert_refused(
            ["train", "recipe.toml", *cli.settings({**weights, "model.rope_factor": 8.0})],
            "rope_scaling/factor is 4.0, the recipe has model.rope_factor = 8",
            "set model.rope_factor = 4.0",
        )
        self.assert_refused(
            ["train", "recipe.toml", *cli.settings({**weights, "model.kv_heads": 3})],
            "num_key_value_heads is 2, the recipe has model.kv_heads = 3",
        )
        # As transformers 5 writes it, and as older files do.
        file = self.folder / "alone" / LAST / "config.json"
        (self.folder / "bare").mkdir()
        shutil.copy(file.parent / "model.safetensors", self.folder / "bare")
        weights = {"model.weights": "bare"}
        scaling = config.pop("rope_scaling")
        newer = {**config, "rope_parameters": {**scaling, "rope_theta": 10000.0}}
        del newer["rope_theta"]
        (self.folder / "bare/config.json").write_text(json.dumps(newer))
        self.train({"run.out": "newer", "train.steps": 1, **weights})
        for change, words in (
            (newer | {"rope_parameters": {**scaling, "rope_theta": 5e5}}, ("rope_theta is 500000",)),
            (config, ("rope_scaling/factor is not there, which means 1", "model.rope_factor = 1")),
            (
                {**config, "rope_scaling": {"type": "linear", "factor": 4.0}},
                ('rope_scaling/type is "linear"', "a Llama that Penstock can read"),
            ),
            (
                {**config, "rope_scaling": scaling, "rms_norm_eps": None},
                ("rms_norm_eps is not there, which means 1e-06",),
            ),
        ):
            (self.folder / "bare/config.json").write_text(json.dumps(change))
            with self.subTest(words=words):
                self.assert_refused(["train", "recipe.toml", *cli.settings(weights)], *words)


class WrongOptions(FamiliesTestCase):
    def refused(self, values, *words):
        self.write_recipe({"run.log": "none", **values})
        self.assert_refused(["train", "recipe.toml"], *words)

    def test_a_family_that_there_is_not(self):
        self.refused({"model.family": "llamas"}, "llamas", 'it takes "gpt2", "llama"')

    def test_options_of_another_family(self):
        self.refused(
            {"model.kv_heads": 2},
            'model.kv_heads = 2 is not read by model.family = "gpt2"; leave it out',
        )
        self.refused(
            {**LLAMA, "model.dropout": 0.1},
            'model.dropout = 0.1 is not read by model.family = "llama"; leave it out',
        )

    def test_heads_that_do_not_divide(self):
        self.refused(
            {**LLAMA, "model.kv_heads": 4}, "model.heads = 6 is not divisible by model.kv_heads = 4"
        )
        self.refused({**LLAMA, "model.width": 54}, "heads of 9 features", "even number")

    def test_rotations_that_nobody_stretches(self):
        self.refused(
            {**LLAMA, "model.rope_factor": 1.0}, "model.rope_context change nothing while model.rope_factor = 1"
        )

    def test_rotations_that_cannot_be_mixed(self):
        self.refused(
            {**LLAMA, "model.rope_low": 4.0}, "model.rope_high = 4 must be above model.rope_low = 4"
        )


if __name__ == "__main__":
    cli.main()
