#include "penstock/report/step_rate.h"

#include <gtest/gtest.h>

namespace penstock::report {
namespace {

TEST(StepRate, KnowsNothingBeforeTheFirstStep) {
  StepRate rate(10, 0);
  EXPECT_FALSE(rate.seconds_per_step());
  rate.observe(10, 5);
  EXPECT_FALSE(rate.seconds_per_step());
}

TEST(StepRate, IgnoresStepsBeforeTheStart) {
  StepRate rate(1000, 0);
  rate.observe(1001, 2);
  EXPECT_DOUBLE_EQ(rate.seconds_per_step().value(), 2);
}

TEST(StepRate, SteadyStepsGiveTheirDuration) {
  StepRate rate(0, 100);
  for (int step = 1; step <= 500; ++step) {
    rate.observe(step, 100 + 0.25 * step);
    EXPECT_NEAR(rate.seconds_per_step().value(), 0.25, 1e-12);
  }
}

TEST(StepRate, StepsMayBeReportedInBunches) {
  StepRate rate(0, 0);
  rate.observe(10, 5);
  rate.observe(40, 20);
  EXPECT_NEAR(rate.seconds_per_step().value(), 0.5, 1e-12);
}

TEST(StepRate, RepeatedReportsOfAStepChangeNothing) {
  StepRate rate(0, 0);
  rate.observe(1, 1);
  rate.observe(1, 1.5);
  rate.observe(2, 2);
  EXPECT_NEAR(rate.seconds_per_step().value(), 1, 1e-12);
}

TEST(StepRate, FollowsAChangeOfSpeed) {
  StepRate rate(0, 0);
  double now = 0;
  int step = 0;
  while (now < 300) {
    rate.observe(++step, now += 1);
  }
  while (now < 500) {
    rate.observe(++step, now += 4);
  }
  EXPECT_NEAR(rate.seconds_per_step().value(), 4, 0.4);
}

TEST(StepRate, OneSlowStepDoesNotDominate) {
  StepRate rate(0, 0);
  for (int step = 1; step <= 300; ++step) {
    rate.observe(step, 0.1 * step);
  }
  rate.observe(301, 30 + 3);  // a checkpoint, 30 times as long
  EXPECT_LT(rate.seconds_per_step().value(), 0.15);
}

TEST(StepRate, GoingBackStartsFromThere) {
  StepRate rate(0, 0);
  rate.observe(10, 10);
  rate.observe(5, 20);
  rate.observe(6, 21);
  EXPECT_NEAR(rate.seconds_per_step().value(), 1, 1e-12);
}

}  // namespace
}  // namespace penstock::report
