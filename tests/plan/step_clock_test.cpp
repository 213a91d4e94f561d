#include "penstock/plan/step_clock.h"

#include <gtest/gtest.h>

namespace penstock::plan {

namespace {

constexpr double kForward = 1, kInput = 1;

// Two stages and one micro-batch, with split backwards; the second stage's weight gradient takes
// `weight`.
double step_seconds(const StepClock::Transfer& transfer, double weight) {
  const schedule::Schedule schedule =
      schedule::make_schedule(schedule::Kind::ZeroBubbleH1, /*ranks=*/2, /*micro_batches=*/1);
  std::vector<StepClock::Seconds> seconds;
  for (const std::vector<schedule::Turn>& rank : schedule.turns) {
    for (const schedule::Turn& turn : rank) {
      const double last = turn.stage == 1 ? weight : 0;
      seconds.push_back({.rest = turn.phase == schedule::Phase::Forward          ? kForward
                                 : turn.phase == schedule::Phase::BackwardWeight ? last
                                                                                 : kInput});
    }
  }
  StepClock clock(schedule, {transfer});
  EXPECT_EQ(clock.turns(), seconds.size());
  return clock.run(seconds);
}

}  // namespace

// The step ends with the second stage's weight gradient, which no gradient on its way holds up, or
// with the first stage, which has waited for both messages.
TEST(StepClock, TellsActivationsFromGradientsOnTheirWay) {
  const double there = 2 * kForward + kInput;
  EXPECT_EQ(step_seconds({.activation_s = 3, .gradient_s = 5}, 50), there + 3 + 50);
  EXPECT_EQ(step_seconds({.activation_s = 5, .gradient_s = 3}, 50), there + 5 + 50);
  EXPECT_EQ(step_seconds({.activation_s = 3, .gradient_s = 5}, 0), there + 3 + 5 + kInput);
}

}  // namespace penstock::plan
