#include "penstock/optim/lr_schedule.h"

#include <gtest/gtest.h>

namespace penstock::optim {

namespace {

config::TrainOptions make(const char* schedule, int64_t steps = 101, int64_t warmup = 0) {
  return {.steps = steps,
          .lr = 2,
          .schedule = schedule,
          .warmup = warmup,
          .final_lr = 0.1,
          .decay = 0.2};
}

double lr(const config::TrainOptions& train, int64_t step) {
  return rate_at(train, step).lr;
}

}  // namespace

TEST(LrSchedule, EveryScheduleRisesOverItsWarmUp) {
  for (const char* name : {"constant", "linear", "cosine", "wsd"}) {
    const config::TrainOptions train = make(name, 100, 10);
    EXPECT_DOUBLE_EQ(lr(train, 0), 0.2) << name;
    EXPECT_DOUBLE_EQ(lr(train, 4), 1.0) << name;
    EXPECT_DOUBLE_EQ(lr(train, 9), 2.0) << name;
    EXPECT_DOUBLE_EQ(lr(train, 10), 2.0) << name;
  }
  const config::TrainOptions cycle = make("onecycle", 100, 10);
  EXPECT_NEAR(lr(cycle, 0), 2.0 / 25, 1e-12);
  EXPECT_DOUBLE_EQ(lr(cycle, 9), 2.0);
}

TEST(LrSchedule, ReachesTheLowestRateOnTheLastStep) {
  for (const char* name : {"linear", "cosine", "wsd", "onecycle"}) {
    EXPECT_NEAR(lr(make(name), 100), 0.2, 1e-12) << name;
    EXPECT_GT(lr(make(name), 99), 0.2) << name;
  }
  EXPECT_EQ(lr(make("constant"), 100), 2);
}

TEST(LrSchedule, GoesAsItsFormulaSays) {
  EXPECT_NEAR(lr(make("linear"), 50), 1.1, 1e-12);
  EXPECT_NEAR(lr(make("cosine"), 50), 1.1, 1e-12);
  EXPECT_NEAR(lr(make("cosine"), 25), 0.2 + 1.8 * 0.5 * (1 + std::sqrt(0.5)), 1e-12);
  EXPECT_EQ(lr(make("wsd"), 80), 2);
  EXPECT_NEAR(lr(make("wsd"), 90), 1.1, 1e-12);
}

TEST(LrSchedule, OneCycleMovesMomentumTheOtherWay) {
  const config::TrainOptions train = make("onecycle");
  EXPECT_NEAR(*rate_at(train, 0).momentum, 0.95, 1e-12);
  EXPECT_NEAR(*rate_at(train, 30).momentum, 0.85, 1e-12);
  EXPECT_NEAR(lr(train, 30), 2, 1e-12);
  EXPECT_NEAR(*rate_at(train, 100).momentum, 0.95, 1e-12);
  EXPECT_FALSE(rate_at(make("cosine"), 5).momentum.has_value());
}

TEST(LrSchedule, StandsTheShortestRuns) {
  for (const char* name : {"constant", "linear", "cosine", "wsd", "onecycle"}) {
    for (const int64_t steps : {1, 2, 3}) {
      for (const int64_t warmup : {0, 1, 2, 10}) {
        for (int64_t step = 0; step < steps; ++step) {
          const double rate = lr(make(name, steps, warmup), step);
          EXPECT_TRUE(rate > 0 && rate <= 2)
              << name << " " << steps << " " << warmup << " " << step << ": " << rate;
        }
      }
    }
  }
}

}  // namespace penstock::optim
