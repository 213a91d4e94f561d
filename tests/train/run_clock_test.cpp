#include "penstock/train/run_clock.h"

#include <gtest/gtest.h>

namespace penstock::train {
namespace {

TEST(RunClock, EndsWhileAStepAndASaveStillFit) {
  const double began = now_seconds();
  RunClock clock({.hours = 1}, began);
  clock.expect_saves(10);
  EXPECT_FALSE(clock.has_to_end(began));
  EXPECT_FALSE(clock.has_to_end(began + 3600 - 16));
  EXPECT_TRUE(clock.has_to_end(began + 3600 - 14));  // half as much again as a save
  clock.step_took(100);
  clock.step_took(1);  // the slowest counts
  EXPECT_FALSE(clock.has_to_end(began + 3600 - 166));
  EXPECT_TRUE(clock.has_to_end(began + 3600 - 164));
  clock.save_took(5);  // what was expected counts no more
  EXPECT_FALSE(clock.has_to_end(began + 3600 - 159));
  clock.save_took(50);
  clock.save_took(1);
  EXPECT_TRUE(clock.has_to_end(began + 3600 - 224));
  EXPECT_FALSE(clock.has_to_end(began + 3600 - 226));
}

TEST(RunClock, WithoutHoursNeverEnds) {
  RunClock clock({}, now_seconds());
  clock.step_took(1e6);
  EXPECT_FALSE(clock.has_to_end(now_seconds() + 1e9));
}

TEST(RunClock, ASaveIsDueSoManyMinutesAfterTheLast) {
  RunClock clock({.save_minutes = 2}, now_seconds());
  EXPECT_FALSE(clock.is_save_due(now_seconds() + 118));
  EXPECT_TRUE(clock.is_save_due(now_seconds() + 121));
  const RunClock never({.save_minutes = 0}, now_seconds());
  EXPECT_FALSE(never.is_save_due(now_seconds() + 1e9));
}

}  // namespace
}  // namespace penstock::train
