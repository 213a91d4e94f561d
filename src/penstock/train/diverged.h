// How a training that diverged ends: with an error (exit code 1), before anything of it is saved.
#pragma once

#include <cstdint>

#include "penstock/config/recipe.h"

namespace penstock::train {

// `what` is not finite at this step.
[[noreturn]] void fail_diverged(const char* what, int64_t step, const config::TrainOptions& train);

// float16: the gradients go on overflowing, although the loss scale has fallen to this, the least.
[[noreturn]] void fail_stuck_scale(double scale, int64_t step, const config::TrainOptions& train);

}  // namespace penstock::train
