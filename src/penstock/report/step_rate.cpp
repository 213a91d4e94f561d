#include "penstock/report/step_rate.h"

#include <algorithm>
#include <cmath>

namespace penstock::report {

namespace {

constexpr double kMemorySeconds = 30;
constexpr double kMemorySteps = 20;

}  // namespace

void StepRate::observe(int64_t done, double seconds) {
  if (done == done_) {
    return;  // the time goes to the next step
  }
  if (done > done_) {
    const double steps = static_cast<double>(done - done_);
    const double elapsed = seconds - seconds_;
    const double memory = std::max(kMemorySeconds, kMemorySteps * elapsed / steps);
    // Fading both sums alike makes the first steps a plain average, with no bias to correct.
    const double kept = std::exp(-elapsed / memory);
    faded_steps_ = faded_steps_ * kept + steps;
    faded_seconds_ = faded_seconds_ * kept + elapsed;
  }
  done_ = done;
  seconds_ = seconds;
}

std::optional<double> StepRate::seconds_per_step() const {
  if (faded_steps_ <= 0) {
    return std::nullopt;
  }
  return faded_seconds_ / faded_steps_;
}

}  // namespace penstock::report
