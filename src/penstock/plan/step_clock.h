// The seconds of a pipeline's step from those of its turns, and which turns they hang on. Built
// once for a schedule and run for many assignments; schedule/clock.h is the plain form.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/schedule/schedule.h"

namespace penstock::plan {

class StepClock {
 public:
  // Seconds of a stage's message to the next stage, and of the gradient that comes back.
  struct Transfer {
    double activation_s = 0;
    double gradient_s = 0;
  };
  // transfers[s]: between stages s and s + 1.
  StepClock(const schedule::Schedule& schedule, const std::vector<Transfer>& transfers);

  // A turn begins with what needs nothing from other stages.
  struct Seconds {
    double lead = 0;
    double rest = 0;
  };
  // `seconds` of each turn, rank after rank.
  double run(const std::vector<Seconds>& seconds);
  struct Critical {
    size_t turn = 0;
    bool with_lead = true;  // not where the turn waited for another stage after its lead
  };
  // One longest path of the last run.
  std::vector<Critical> critical_turns() const;
  size_t turns() const { return nodes_.size(); }

 private:
  static constexpr int32_t kNone = -1;
  struct Node {
    int32_t before = kNone;     // the turn before on the same rank
    int32_t waits_for = kNone;  // of another stage
    double transfer_s = 0;
  };

  std::vector<Node> nodes_;
  std::vector<int32_t> order_;  // every node after those that it waits for
  std::vector<double> end_;
  std::vector<int32_t> held_up_by_;
  int32_t last_ = kNone;
};

}  // namespace penstock::plan
