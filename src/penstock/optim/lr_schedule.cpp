#include "penstock/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace penstock::optim {

namespace {

// The range of PyTorch's OneCycleLR: lr / 25 at the start, momentum from 0.95 down to 0.85 and
// back.
constexpr double kCycleStart = 1.0 / 25;
constexpr double kHighMomentum = 0.95;
constexpr double kLowMomentum = 0.85;

double line(double from, double to, double share) {
  return from + (to - from) * share;
}

double half_cosine(double from, double to, double share) {
  return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * share));
}

// 0 on step `first`, 1 on step `last`.
double progress(int64_t step, int64_t first, int64_t last) {
  if (last <= first) {
    return 1;
  }
  return std::clamp(
      static_cast<double>(step - first) / static_cast<double>(last - first), 0.0, 1.0);
}

Rate one_cycle(const config::TrainOptions& train, int64_t step) {
  const int64_t last = train.steps - 1;
  const int64_t top =
      train.warmup > 0 ? train.warmup - 1 : std::llround(0.3 * static_cast<double>(last));
  if (step <= top) {
    const double share = progress(step, 0, top);
    return {half_cosine(kCycleStart * train.lr, train.lr, share),
            half_cosine(kHighMomentum, kLowMomentum, share)};
  }
  const double share = progress(step, top, last);
  return {half_cosine(train.lr, train.lr * train.final_lr, share),
          half_cosine(kLowMomentum, kHighMomentum, share)};
}

}  // namespace

Rate rate_at(const config::TrainOptions& train, int64_t step) {
  if (train.schedule == "onecycle") {
    return one_cycle(train, step);
  }
  if (step < train.warmup) {
    return {train.lr * static_cast<double>(step + 1) / static_cast<double>(train.warmup), {}};
  }
  const double lowest = train.lr * train.final_lr;
  const int64_t last = train.steps - 1;
  if (train.schedule == "linear") {
    return {line(train.lr, lowest, progress(step, train.warmup, last)), {}};
  }
  if (train.schedule == "cosine") {
    return {half_cosine(train.lr, lowest, progress(step, train.warmup, last)), {}};
  }
  if (train.schedule == "wsd") {
    const int64_t decay_steps = std::llround(train.decay * static_cast<double>(train.steps));
    const int64_t first = std::max(train.warmup, train.steps - decay_steps) - 1;
    return {step <= first ? train.lr : line(train.lr, lowest, progress(step, first, last)), {}};
  }
  return {train.lr, {}};
}

}  // namespace penstock::optim
