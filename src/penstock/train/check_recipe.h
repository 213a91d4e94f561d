// check for a recipe or a chain of one's own: plans it, and compares the plan's steps with those of one
// device that keeps everything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/plan/rotor.h"
#include "penstock/train/check.h"
#include "penstock/train/subject.h"

namespace penstock::train {

struct CheckRequest {
  int64_t steps = 3;
  plan::RotorOptions rotor = {};
  std::function<void(const program::Program&)> on_plan = nullptr;
  std::function<void(int64_t done)> on_step = nullptr;
};

struct CheckOutcome {
  CheckReport report;
  std::vector<int64_t> predicted_peaks;  // of each rank
  int64_t limit_bytes = 0;

  bool is_equal() const { return report.is_equal; }
  bool has_ranks() const { return predicted_peaks.size() > 1; }
  int64_t predicted_peak() const {
    return *std::max_element(predicted_peaks.begin(), predicted_peaks.end());
  }
};

// The process has been prepared (setup.h). Throws Error: ConfigError for a plan that gives other numbers
// by design, exit code 1 where nothing fits or Ctrl-C came first.
CheckOutcome check_recipe(const config::Recipe& recipe,
                          const CheckRequest& request,
                          const Subject& subject = family_subject());

}  // namespace penstock::train
