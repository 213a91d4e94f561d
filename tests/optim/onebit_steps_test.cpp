#include "penstock/optim/onebit_steps.h"

#include <vector>

#include <gtest/gtest.h>

namespace penstock::optim {
namespace {

template <typename Is>
std::vector<int64_t> steps_where(int64_t last, const Is& is) {
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= last; ++step) {
    if (is(step)) {
      steps.push_back(step);
    }
  }
  return steps;
}

TEST(OneBitSteps, FreezeAfterAFifthWhereNothingIsSaid) {
  config::TrainOptions train{.steps = 500};
  EXPECT_EQ(freeze_step(train), 100);
  EXPECT_EQ(var_freeze_step(train), 100);
  train.freeze_step = 7;
  train.var_freeze_step = 9;
  EXPECT_EQ(freeze_step(train), 7);
  EXPECT_EQ(var_freeze_step(train), 9);
  EXPECT_EQ(freeze_step({.steps = 3}), 1);
  EXPECT_EQ(freeze_step({.steps = 0}), 1);
}

TEST(VarianceSteps, ComeHalfAsOftenAfterEachSoMany) {
  const config::TrainOptions train{.steps = 500, .var_freeze_step = 45, .var_update_scaler = 3};
  const std::vector<int64_t> expected{1, 2, 3, 5, 7, 9, 13, 17, 21, 29, 37, 45};
  EXPECT_EQ(steps_where(500, [&](int64_t step) { return updates_variance(train, step); }),
            expected);
}

TEST(VarianceSteps, AreCounted) {
  for (const int64_t scaler : {1, 2, 16}) {
    const config::TrainOptions train{
        .steps = 3000, .var_freeze_step = 2000, .var_update_scaler = scaler};
    int64_t updates = 0;
    for (int64_t step = 1; step <= 3000; ++step) {
      updates += updates_variance(train, step) ? 1 : 0;
      ASSERT_EQ(variance_updates(train, step), updates) << scaler << " " << step;
    }
  }
}

TEST(OneBitSteps, GoOnFromAStateThatTheyCouldHaveMade) {
  const config::TrainOptions before{.steps = 500, .optimizer = "onebit-lamb"};
  config::TrainOptions after = before;
  after.steps = 1000;  // freezes after 200 steps, not 100
  EXPECT_EQ(settings_to_go_on(before, before, 300), "");
  EXPECT_EQ(settings_to_go_on(before, after, 100), "");
  EXPECT_EQ(settings_to_go_on(before, after, 101), "train.freeze_step = 100");
  EXPECT_EQ(settings_to_go_on(after, before, 150), "train.freeze_step = 200");
  after.freeze_step = 100;
  EXPECT_EQ(settings_to_go_on(before, after, 500), "");
}

TEST(OneBitSteps, OfZeroOneAdamGoOnWhereTheVarianceIsTheSame) {
  const config::TrainOptions before{.steps = 500, .optimizer = "zeroone-adam"};
  for (int64_t step = 1; step <= 500; ++step) {
    EXPECT_EQ(settings_to_go_on(before, before, step), "");
  }
  const std::string settings = "train.var_freeze_step = 100 and train.var_update_scaler = 64";
  config::TrainOptions after = before;
  after.steps = 1000;
  EXPECT_EQ(settings_to_go_on(before, after, 99), "");
  EXPECT_EQ(settings_to_go_on(before, after, 300), settings);
  after.var_freeze_step = 100;
  EXPECT_EQ(settings_to_go_on(before, after, 300), "");
  after = before;
  after.var_update_scaler = 16;
  EXPECT_EQ(settings_to_go_on(before, after, 16), "");
  EXPECT_EQ(settings_to_go_on(before, after, 17), settings);
}

TEST(Replicas, MeetEveryStepUntilTheVarianceIsFrozenThenHalfAsOftenEachTime) {
  const config::TrainOptions train{
      .steps = 40, .var_freeze_step = 4, .local_step_scaler = 5, .local_step_clipper = 6};
  // Intervals of 1, 2, 4, then 6 steps; each five steps end with a meeting.
  const std::vector<int64_t> expected{
      1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 14, 18, 19, 25, 31, 37, 40};
  EXPECT_EQ(steps_where(40, [&](int64_t step) { return replicas_meet(train, step); }), expected);
}

TEST(Replicas, MeetInEveryStepForTwoFifthsThenEveryOtherWhereNothingIsSaid) {
  const config::TrainOptions train{.steps = 500};
  for (int64_t step = 1; step <= 500; ++step) {
    ASSERT_EQ(replicas_meet(train, step), step <= 300 || step % 2 == 0) << step;
  }
}

TEST(Replicas, MeetInEveryStepWhereTheyTakeNoneByThemselves) {
  const config::TrainOptions train{.steps = 400, .local_step_clipper = 1};
  EXPECT_EQ(steps_where(400, [&](int64_t step) { return replicas_meet(train, step); }).size(), 400);
}

}  // namespace
}  // namespace penstock::optim
