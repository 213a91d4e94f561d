// When the clock on the wall says that a run has to end or to save: run.hours and run.save_minutes. Rank 0
// has one, and decides for all.
#pragma once

#include <optional>

#include "penstock/base/clock.h"
#include "penstock/config/recipe.h"

namespace penstock::train {

class RunClock {
 public:
  RunClock(const config::RunOptions& options, double began_s);

  void expect_saves(double seconds);  // what one may take, as long as none has been seen

  void step_took(double seconds);  // with what comes after it: checks, validation
  // Also a save that failed: the next is due after the same pause.
  void save_took(double seconds);

  // Another step, and a save after it, may not be done in time.
  bool has_to_end(double now_s = now_seconds()) const;
  bool is_save_due(double now_s = now_seconds()) const;

 private:
  double end_s_, save_pause_s_;  // 0: never
  double last_save_s_;
  double slowest_step_s_ = 0;
  double expected_save_s_ = 0;
  std::optional<double> slowest_save_s_;
};

}  // namespace penstock::train
