#include "penstock/train/run_clock.h"

#include <algorithm>

namespace penstock::train {

RunClock::RunClock(const config::RunOptions& options, double began_s)
    : end_s_(options.hours > 0 ? began_s + 3600 * options.hours : 0),
      save_pause_s_(60 * options.save_minutes),
      last_save_s_(now_seconds()) {}

void RunClock::expect_saves(double seconds) {
  expected_save_s_ = seconds;
}

void RunClock::step_took(double seconds) {
  slowest_step_s_ = std::max(slowest_step_s_, seconds);
}

void RunClock::save_took(double seconds) {
  slowest_save_s_ = std::max(slowest_save_s_.value_or(0), seconds);
  last_save_s_ = now_seconds();
}

bool RunClock::has_to_end(double now_s) const {
  constexpr double kUnforeseen = 1.5;
  return end_s_ > 0 &&
         now_s + kUnforeseen * (slowest_step_s_ + slowest_save_s_.value_or(expected_save_s_)) >=
             end_s_;
}

bool RunClock::is_save_due(double now_s) const {
  return save_pause_s_ > 0 && now_s - last_save_s_ >= save_pause_s_;
}

}  // namespace penstock::train
