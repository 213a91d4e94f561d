// Asynchronous pipelines: how many optimizer steps run before the pipeline is drained, and with
// which learning rate each rank takes them. docs/pipelines.md, "Asynchronous".
#pragma once

#include <cstdint>

#include "penstock/config/recipe.h"

namespace penstock::train {

// The most steps that run at once: 1 for a synchronous schedule.
int64_t most_steps_at_once(const config::Recipe& recipe);

// Those that run next, when `step` are done. The pipeline is drained at multiples of
// plan.flush_every, wherever a run began, so that a resumed run has the numbers of one that was not
// stopped.
int64_t steps_at_once(const config::Recipe& recipe, int64_t step);

// What the learning rate of a stage is multiplied by. PipeMare lowers those of early stages, whose
// gradients are late, by tau^-(1 - k / anneal_steps) with tau = (2 (pipeline - 1 - stage) + 1) /
// micro_batches, never below 1, at the k-th step after plan.sync_steps.
double rate_factor(const config::PlanOptions& plan, int64_t stage, int64_t step);

}  // namespace penstock::train
