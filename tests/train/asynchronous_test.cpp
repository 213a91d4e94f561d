#include "penstock/train/asynchronous.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/config/options.h"
#include "penstock/schedule/schedule.h"

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

// Recipes do not know of schedules: what they say of them must be the same.
TEST(Asynchronous, RecipesKnowTheSchedules) {
  const config::Option& option = config::find_option("plan.schedule", "a test");
  EXPECT_TRUE(option.is_allowed(config::OptionValue(std::string("auto"))));
  for (const std::string& name : schedule::kind_names()) {
    EXPECT_TRUE(option.is_allowed(config::OptionValue(name))) << name;
    EXPECT_EQ(config::PlanOptions{.schedule = name}.is_asynchronous(),
              schedule::is_asynchronous(schedule::parse_kind(name)))
        << name;
  }
  // The least number of micro-batches that 2bw takes.
  for (const int64_t micro_batches : {3, 4}) {
    config::Recipe recipe = recipe_of("2bw", 10, 4);
    recipe.model.tied = false;
    recipe.train.clip = 0;
    recipe.train.batch = 12;
    recipe.plan.micro_batches = micro_batches;
    const schedule::Sizes sizes{.ranks = 4, .micro_batches = static_cast<int32_t>(micro_batches)};
    if (micro_batches < 4) {
      EXPECT_THROW(config::validate(recipe), ConfigError);
      EXPECT_THROW(schedule::make_schedule(schedule::Kind::PipeDream2BW, sizes), ConfigError);
    } else {
      EXPECT_NO_THROW(config::validate(recipe));
      EXPECT_NO_THROW(schedule::make_schedule(schedule::Kind::PipeDream2BW, sizes));
    }
  }
}

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
