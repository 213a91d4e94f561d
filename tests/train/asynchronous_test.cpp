#include "penstock/train/asynchronous.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace penstock::train {

namespace {

config::Recipe recipe_of(const std::string& schedule, int64_t steps, int64_t flush_every) {
  config::Recipe recipe;
  recipe.plan.pipeline = 4;
  recipe.plan.schedule = schedule;
  recipe.plan.flush_every = flush_every;
  recipe.train.steps = steps;
  return recipe;
}

// The numbers of steps that a run takes at once, from `step` on.
std::vector<int64_t> segments(const config::Recipe& recipe, int64_t step = 0) {
  std::vector<int64_t> counts;
  while (step < recipe.train.steps) {
    counts.push_back(steps_at_once(recipe, step));
    step += counts.back();
  }
  return counts;
}

}  // namespace

TEST(Asynchronous, DrainsAtMultiplesOfFlushEvery) {
  const config::Recipe recipe = recipe_of("pipedream", 10, 4);
  EXPECT_EQ(segments(recipe), (std::vector<int64_t>{4, 4, 2}));
  EXPECT_EQ(segments(recipe, /*step=*/4), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(segments(recipe, /*step=*/5), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(most_steps_at_once(recipe), 4);
  EXPECT_EQ(most_steps_at_once(recipe_of("2bw", 3, 16)), 3);
}

TEST(Asynchronous, DrainsEveryOneOfTheFirstSteps) {
  config::Recipe recipe = recipe_of("pipemare", 10, 4);
  recipe.plan.sync_steps = 3;
  EXPECT_EQ(segments(recipe), (std::vector<int64_t>{1, 1, 1, 1, 4, 2}));
  EXPECT_EQ(most_steps_at_once(recipe), 4);
  recipe.plan.sync_steps = 6;
  EXPECT_EQ(segments(recipe), (std::vector<int64_t>{1, 1, 1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(most_steps_at_once(recipe), 2);
  recipe.plan.sync_steps = 10;
  EXPECT_EQ(most_steps_at_once(recipe), 1);
}

TEST(Asynchronous, LeavesOtherSchedulesStepByStep) {
  const config::Recipe recipe = recipe_of("1f1b", 3, 4);
  EXPECT_EQ(segments(recipe), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(most_steps_at_once(recipe), 1);
}

TEST(Asynchronous, PipeMareLowersTheRatesOfEarlyRanks) {
  config::PlanOptions plan = recipe_of("pipemare", 10, 4).plan;
  plan.micro_batches = 2;
  plan.anneal_steps = 100;
  // tau is 7/2, 5/2, 3/2 and, of the last rank, 1/2, which is no delay.
  EXPECT_DOUBLE_EQ(rate_factor(plan, 0, 0), 2.0 / 7);
  EXPECT_DOUBLE_EQ(rate_factor(plan, 1, 0), 2.0 / 5);
  EXPECT_DOUBLE_EQ(rate_factor(plan, 2, 0), 2.0 / 3);
  EXPECT_DOUBLE_EQ(rate_factor(plan, 3, 0), 1);
  EXPECT_DOUBLE_EQ(rate_factor(plan, 0, 50), std::sqrt(2.0 / 7));
  EXPECT_DOUBLE_EQ(rate_factor(plan, 0, 100), 1);
  EXPECT_DOUBLE_EQ(rate_factor(plan, 0, 1000), 1);
  // Nothing is late in synchronous steps; the count begins after them.
  plan.sync_steps = 30;
  EXPECT_DOUBLE_EQ(rate_factor(plan, 0, 29), 1);
  EXPECT_DOUBLE_EQ(rate_factor(plan, 0, 30), 2.0 / 7);
  EXPECT_DOUBLE_EQ(rate_factor(plan, 0, 80), std::sqrt(2.0 / 7));
}

TEST(Asynchronous, OthersHaveOneRate) {
  for (const char* schedule : {"1f1b", "pipedream", "2bw"}) {
    EXPECT_EQ(rate_factor(recipe_of(schedule, 10, 4).plan, 0, 0), 1) << schedule;
  }
}

}  // namespace penstock::train
