// The learning rate as a pure function of the step. Steps are optimizer steps, counted from 0.
#pragma once

#include <cstdint>
#include <optional>

#include "penstock/config/recipe.h"

namespace penstock::optim {

struct Rate {
  double lr = 0;
  std::optional<double>
      momentum;  // where the schedule also moves momentum (sgd) or beta1 (adamw, lamb)
};

// Every schedule first rises over train.warmup steps, reaching train.lr on the last of them. The
// lowest rate, train.lr * train.final_lr, is reached on the last step. "onecycle" without a warm-up
// rises over the first 30 % of the steps.
Rate rate_at(const config::TrainOptions& train, int64_t step);

}  // namespace penstock::optim
