"""The cases of bench/compare.py: small runs that together go through every layout, schedule, shard and optimizer.

Every plan is pinned by its case: cuts, schedule and shard are given, costs come from one table for both programs.
"""
import dataclasses
import itertools

# A run takes some tenths of a second, most of it the start of the program. The chain has 7 layers: the embedding and
# two halves of each block. Rates rise and fall within the steps, and there is a validation on the way.
COMMON = {
    "model.layers": 3,
    "model.width": 32,
    "model.heads": 4,
    "model.context": 32,
    "model.vocabulary": 256,
    "train.steps": 6,
    "train.batch": 8,
    "train.lr": 2e-3,
    "train.warmup": 2,
    "plan.collectives": "direct",
    "run.threads": 1,
    "run.log": "jsonl",
    "run.validate_every": 3,
    "run.validate_sequences": 16,
    "run.timeout": 60,
}

SHARDS = ("none", "optimizer", "gradients", "parameters")
UNTIED = {"model.tied": False}
BFLOAT16 = {"train.precision": "bfloat16"}
DROPOUT = {"model.dropout": 0.1}
NO_CLIP = {"train.clip": 0}
SOME_LIMIT = 0.3


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    settings: dict  # on top of COMMON
    # plan.memory, as a share of the way from the least that fits (0) to what is held without a limit (1).
    limit: float | None = None
    # "train": one run. "resume": a run with checkpoints, then one from the first of them. "cross": that one by both
    # programs from what base wrote.
    kind: str = "train"
    is_timed: bool = False

    def all_settings(self):
        return {**COMMON, **self.settings}


def micro_batch_size(settings):
    return settings["train.batch"] // settings.get("plan.data", 1) // settings.get("plan.micro_batches", 1)


def num_ranks(settings):
    return settings.get("plan.pipeline", 1) * settings.get("plan.data", 1)


def is_planned_by_measurement(settings):
    """Pipelines of replicas measure the line between ranks when they start, and no setting takes its place."""
    return settings.get("plan.pipeline", 1) > 1 and settings.get("plan.data", 1) > 1


def pipeline(ranks, schedule):
    """Such that all stages are about as long: two for each rank where the schedule has chunks."""
    num_stages = ranks * (2 if schedule in ("interleaved", "zb-v") else 1)
    cuts = {2: "4", 4: "2,4,6"}[num_stages]
    return {"plan.pipeline": ranks, "plan.schedule": schedule, "plan.cuts": cuts, "plan.micro_batches": 4}


def replicas(count, shard):
    return {"plan.data": count, "plan.shard": shard}


def one_rank():
    return [
        Case("plain", {}, is_timed=True),
        Case("plain-bfloat16", BFLOAT16),
        Case("plain-untied", UNTIED),
        Case("plain-untied-bfloat16", UNTIED | BFLOAT16),
        Case("plain-dropout", DROPOUT),
        Case("plain-dropout-bfloat16", DROPOUT | BFLOAT16),
        Case("plain-noclip", NO_CLIP),
        Case("micro4", {"plan.micro_batches": 4}),
        Case("micro4-dropout-bfloat16", {"plan.micro_batches": 4} | DROPOUT | BFLOAT16),
        Case("recompute-all", {"plan.recompute": "all"}),
        Case("recompute-sqrt", {"plan.recompute": "sqrt"}),
        Case("limit-micro1", {}, limit=SOME_LIMIT, is_timed=True),
        Case("limit-micro4", {"plan.micro_batches": 4}, limit=SOME_LIMIT),
        Case("limit-least", {}, limit=0),
        Case("limit-untied", UNTIED, limit=SOME_LIMIT),
        Case("limit-bfloat16", BFLOAT16, limit=SOME_LIMIT),
        Case("limit-dropout", DROPOUT, limit=SOME_LIMIT),
    ]


def pipelines():
    schedules = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
    return [
        *(Case(f"pipeline2-{schedule}-{tied}", pipeline(2, schedule) | extra, is_timed=schedule == "1f1b")
          for schedule in schedules for tied, extra in (("tied", {}), ("untied", UNTIED))),
        *(Case(f"pipeline2-{schedule}-bfloat16", pipeline(2, schedule) | BFLOAT16)
          for schedule in ("1f1b", "zb-h1", "zb-v")),
        Case("pipeline2-1f1b-dropout", pipeline(2, "1f1b") | DROPOUT),
        Case("pipeline2-1f1b-noclip", pipeline(2, "1f1b") | NO_CLIP),
        Case("pipeline2-1f1b-micro1", pipeline(2, "1f1b") | {"plan.micro_batches": 1}),
        Case("pipeline2-1f1b-lamb", pipeline(2, "1f1b") | {"train.optimizer": "lamb"}),
        Case("pipeline4-1f1b-tied", pipeline(4, "1f1b")),
        Case("pipeline4-1f1b-untied", pipeline(4, "1f1b") | UNTIED),
        *(Case(f"pipeline2-{schedule}-limit", pipeline(2, schedule), limit=SOME_LIMIT)
          for schedule in ("1f1b", "interleaved", "zb-h1")),
        Case("pipeline2-1f1b-limit-uniform", pipeline(2, "1f1b") | {"plan.recompute": "rotor-uniform"},
             limit=SOME_LIMIT),
        Case("pipeline2-1f1b-limit-dropout-bfloat16", pipeline(2, "1f1b") | DROPOUT | BFLOAT16, limit=SOME_LIMIT),
    ]


def asynchronous(ranks, schedule):
    """Drained in the middle of the run and at its end: in between the ranks' weights move by themselves."""
    return pipeline(ranks, schedule) | UNTIED | NO_CLIP | {"plan.flush_every": 3}


def asynchronous_pipelines():
    schedules = ("pipedream", "2bw", "pipemare")
    return [
        *(Case(f"pipeline{ranks}-{schedule}", asynchronous(ranks, schedule))
          for ranks in (2, 4) for schedule in schedules),
        *(Case(f"pipeline2-{schedule}-bfloat16", asynchronous(2, schedule) | BFLOAT16) for schedule in schedules),
        Case("pipeline2-2bw-sync", asynchronous(2, "2bw") | {"plan.sync_steps": 3}),
    ]


def data_parallel():
    reduce_compute = BFLOAT16 | {"plan.reduce": "compute"}
    keep_gathered = {"plan.keep_gathered": True}
    return [
        *(Case(f"data2-{shard}-{tied}", replicas(2, shard) | extra,
               is_timed=tied == "tied" and shard in ("none", "parameters"))
          for shard in SHARDS for tied, extra in (("tied", {}), ("untied", UNTIED))),
        # Shards of unequal length.
        *(Case(f"data3-{shard}", replicas(3, shard) | {"train.batch": 12}) for shard in SHARDS),
        *(Case(f"data4-{shard}", replicas(4, shard)) for shard in SHARDS),
        *(Case(f"data2-{shard}-micro2", replicas(2, shard) | {"plan.micro_batches": 2}) for shard in SHARDS),
        *(Case(f"data2-{shard}-bfloat16", replicas(2, shard) | BFLOAT16) for shard in SHARDS),
        *(Case(f"data2-{shard}-reduce-compute", replicas(2, shard) | reduce_compute) for shard in SHARDS),
        *(Case(f"data2-{shard}-noclip", replicas(2, shard) | NO_CLIP) for shard in ("none", "parameters")),
        *(Case(f"data2-{shard}-dropout", replicas(2, shard) | DROPOUT) for shard in ("none", "parameters")),
        # All gradients have 190 KB, so that there are several buckets.
        *(Case(f"data2-{shard}-buckets", replicas(2, shard) | {"plan.bucket": "40KB"})
          for shard in ("none", "optimizer")),
        Case("data2-keep-gathered", replicas(2, "parameters") | keep_gathered),
        Case("data2-keep-gathered-untied", replicas(2, "parameters") | keep_gathered | UNTIED),
        Case("data2-keep-gathered-bfloat16", replicas(2, "parameters") | keep_gathered | BFLOAT16),
        *(Case(f"data2-{shard}-limit", replicas(2, shard), limit=SOME_LIMIT) for shard in SHARDS),
    ]


def pipelines_of_replicas():
    def layout(shard, schedule):
        return pipeline(2, schedule) | replicas(2, shard) | {"train.batch": 16}

    return [
        *(Case(f"pipeline2-data2-{schedule}-{shard}", layout(shard, schedule))
          for schedule in ("1f1b", "zb-h1") for shard in SHARDS),
        Case("pipeline2-data2-1f1b-parameters-untied", layout("parameters", "1f1b") | UNTIED),
        Case("pipeline2-data2-1f1b-keep-gathered", layout("parameters", "1f1b") | {"plan.keep_gathered": True}),
        Case("pipeline2-data2-zb-v-gradients", layout("gradients", "zb-v")),
        *(Case(f"pipeline2-data2-1f1b-{shard}-bfloat16", layout(shard, "1f1b") | BFLOAT16)
          for shard in ("none", "parameters")),
        Case("pipeline2-data2-1f1b-gradients-limit", layout("gradients", "1f1b"), limit=SOME_LIMIT),
    ]


FULL_PRECISION = {
    "sgd": {"train.optimizer": "sgd"},
    "sgd-plain": {"train.optimizer": "sgd", "train.momentum": 0},
    "nesterov": {"train.optimizer": "sgd", "train.nesterov": True},
    "lamb": {"train.optimizer": "lamb"},
}
# The variance freezes in the third of ten steps. 0/1 Adam has steps without an update of it before that, and afterwards
# steps in which replicas move by themselves.
ONE_BIT_STEPS = {"train.steps": 10, "run.validate_every": 5}
LOCAL_STEPS = {"train.optimizer": "zeroone-adam", "train.var_freeze_step": 3, "train.var_update_scaler": 1,
               "train.local_step_scaler": 2, "train.local_step_clipper": 4, **ONE_BIT_STEPS}
ONE_BIT = {
    "onebit-adam": {"train.optimizer": "onebit-adam", "train.freeze_step": 3, **ONE_BIT_STEPS},
    "onebit-lamb": {"train.optimizer": "onebit-lamb", "train.freeze_step": 3, **ONE_BIT_STEPS},
    "zeroone-adam": LOCAL_STEPS | {"train.local_step_clipper": 1},
}


def optimizers():
    everything = {**FULL_PRECISION, **ONE_BIT, "zeroone-adam-local": LOCAL_STEPS}
    return [
        *(Case(name, settings) for name, settings in everything.items()),
        *(Case(f"{name}-bfloat16", settings | BFLOAT16) for name, settings in everything.items()),
        *(Case(f"data2-none-{name}", settings | replicas(2, "none"), is_timed=name == "onebit-adam")
          for name, settings in everything.items()),
        *(Case(f"data2-{shard}-{name}", FULL_PRECISION[name] | replicas(2, shard))
          for name, shard in itertools.product(("lamb", "sgd"), SHARDS[1:])),
        *(Case(f"data2-optimizer-{name}", settings | replicas(2, "optimizer")) for name, settings in ONE_BIT.items()),
        *(Case(f"data2-none-{name}-noclip", settings | replicas(2, "none") | NO_CLIP)
          for name, settings in ONE_BIT.items()),
        *(Case(f"data2-none-{name}-bfloat16", settings | replicas(2, "none") | BFLOAT16)
          for name, settings in everything.items()),
        Case("data3-none-onebit-adam", ONE_BIT["onebit-adam"] | replicas(3, "none") | {"train.batch": 12}),
        *(Case(f"pipeline2-data2-1f1b-none-{name}",
               settings | pipeline(2, "1f1b") | replicas(2, "none") | {"train.batch": 16})
          for name, settings in {**ONE_BIT, "lamb": FULL_PRECISION["lamb"], "zeroone-adam-local": LOCAL_STEPS}.items()),
    ]


def resumed():
    one_bit = {**ONE_BIT, "zeroone-adam-local": LOCAL_STEPS}
    in_the_middle = {"run.save_every": 3}
    # After the variance has frozen.
    one_bit_layouts = {
        **{name: settings | {"run.save_every": 5} for name, settings in one_bit.items()},
        **{f"data2-none-{name}": settings | replicas(2, "none") | {"run.save_every": 5}
           for name, settings in one_bit.items()},
        **{f"data2-optimizer-{name}": settings | replicas(2, "optimizer") | {"run.save_every": 5}
           for name, settings in ONE_BIT.items()},
    }
    # Before, so that the checkpoint lacks what freezing brings.
    early = {f"data2-none-{name}-early": settings | replicas(2, "none") | {"run.save_every": 2}
             for name, settings in one_bit.items()}
    layouts = {
        "plain": in_the_middle,
        "plain-bfloat16-dropout": in_the_middle | BFLOAT16 | DROPOUT,
        "pipeline2-1f1b": in_the_middle | pipeline(2, "1f1b"),
        "data2-none": in_the_middle | replicas(2, "none"),
        "data2-parameters": in_the_middle | replicas(2, "parameters"),
        "data3-gradients": in_the_middle | replicas(3, "gradients") | {"train.batch": 12},
        "pipeline2-data2-zb-h1-gradients":
            in_the_middle | pipeline(2, "zb-h1") | replicas(2, "gradients") | {"train.batch": 16},
        "lamb": in_the_middle | FULL_PRECISION["lamb"],
        "sgd": in_the_middle | FULL_PRECISION["sgd"],
        "pipeline2-pipedream": in_the_middle | asynchronous(2, "pipedream"),
    }
    return [
        *(Case(f"resume-{name}", settings, kind="resume") for name, settings in {**one_bit_layouts, **early}.items()),
        *(Case(f"cross-{name}", settings, kind="cross") for name, settings in {**layouts, **one_bit_layouts}.items()),
    ]


def all_cases():
    return [*one_rank(), *pipelines(), *asynchronous_pipelines(), *data_parallel(), *pipelines_of_replicas(),
            *optimizers(), *resumed()]
