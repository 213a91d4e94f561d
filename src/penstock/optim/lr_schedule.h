// The learning rate as a pure function of the step. Steps are optimizer steps, counted from 0.
#pragma once

#include <cstdint>

#include "penstock/config/recipe.h"
#include "penstock/run/stepper.h"

namespace penstock::optim {

using run::Rate;

// Every schedule first rises over train.warmup steps, reaching train.lr on the last of them. The
// lowest rate, train.lr * train.final_lr, is reached on the last step. "onecycle" without a warm-up
// rises over the first 30 % of the steps.
Rate rate_at(const config::TrainOptions& train, int64_t step);

}  // namespace penstock::optim
