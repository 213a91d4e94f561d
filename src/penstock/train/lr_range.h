// The learning-rate range test (Smith, 2017): train with a rate that grows step by step; the loss
// falls where the rate is useful and explodes where it is too high.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/config/recipe.h"

namespace penstock::train {

struct LrRangeOptions {
  double lowest = 1e-6;
  double highest = 1;
  int64_t steps = 100;
};

struct LrRange {
  std::vector<double> rates;
  std::vector<double> losses;
  std::vector<double> smoothed;     // exponential mean of the losses, its start corrected
  std::optional<double> suggested;  // where the smoothed loss falls fastest; none: it never fell
};

// Ends early when the smoothed loss is four times its lowest, or not finite, or on Ctrl-C.
LrRange test_lr_range(const config::Recipe& recipe, const LrRangeOptions& options);

}  // namespace penstock::train
