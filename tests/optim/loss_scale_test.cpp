#include "penstock/optim/loss_scale.h"

#include <limits>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "penstock/base/error.h"

namespace penstock::optim {
namespace {

// 'c': a clean step, 'x': one that overflowed.
void take(LossScaler& scaler, const std::string& steps) {
  for (const char step : steps) {
    step == 'c' ? scaler.step_was_clean() : scaler.step_overflowed();
  }
}

LossScaleState after(const LossScaleOptions& options, const std::string& steps) {
  LossScaler scaler(options);
  take(scaler, steps);
  return scaler.state();
}

TEST(LossScale, BeginsAsTheOptionsSay) {
  const LossScaler scaler({.initial = 1024, .hysteresis = 3});
  EXPECT_EQ(scaler.scale(), 1024);
  EXPECT_EQ(scaler.state(), (LossScaleState{1024, 0, 3}));
  EXPECT_FALSE(scaler.is_stuck());
}

// The table of docs/precision.md.
TEST(LossScale, LivesAsTheExampleOfTheDocsSays) {
  LossScaler scaler({.initial = 65536, .interval = 3, .hysteresis = 2});
  const struct {
    char step;
    LossScaleState state;
  } rows[] = {{'c', {65536, 1, 2}},
              {'x', {65536, 0, 1}},
              {'c', {65536, 1, 1}},
              {'x', {32768, 0, 0}},
              {'x', {16384, 0, 0}},
              {'c', {16384, 1, 0}},
              {'c', {16384, 2, 0}},
              {'c', {32768, 0, 2}},
              {'x', {32768, 0, 1}}};
  int step = 0;
  for (const auto& row : rows) {
    take(scaler, std::string(1, row.step));
    EXPECT_EQ(scaler.state(), row.state) << "after step " << ++step;
  }
}

TEST(LossScale, GrowsAfterEachIntervalOfCleanSteps) {
  const LossScaleOptions options{.initial = 8, .interval = 4};
  EXPECT_EQ(after(options, "ccc").scale, 8);
  EXPECT_EQ(after(options, "cccc").scale, 16);
  EXPECT_EQ(after(options, "ccccccc").scale, 16);
  EXPECT_EQ(after(options, "cccccccc").scale, 32);
}

TEST(LossScale, AnOverflowStartsTheIntervalAgain) {
  const LossScaleOptions options{.initial = 8, .interval = 4, .hysteresis = 9};
  EXPECT_EQ(after(options, "cccxccc"), (LossScaleState{8, 3, 8}));
  EXPECT_EQ(after(options, "cccxcccc"), (LossScaleState{16, 0, 9}));
}

TEST(LossScale, FallsWithTheOverflowThatUsesUpTheHysteresis) {
  EXPECT_EQ(after({.initial = 64, .hysteresis = 1}, "x"), (LossScaleState{32, 0, 0}));
  EXPECT_EQ(after({.initial = 64, .hysteresis = 3}, "xx"), (LossScaleState{64, 0, 1}));
  EXPECT_EQ(after({.initial = 64, .hysteresis = 3}, "xxx"), (LossScaleState{32, 0, 0}));
}

TEST(LossScale, FallsWithEveryFurtherOverflowUntilItHasGrown) {
  const LossScaleOptions options{.initial = 64, .interval = 2, .hysteresis = 2};
  EXPECT_EQ(after(options, "xxxcx"), (LossScaleState{8, 0, 0}));
  EXPECT_EQ(after(options, "xxxcc"), (LossScaleState{32, 0, 2}));
  EXPECT_EQ(after(options, "xxxccx"), (LossScaleState{32, 0, 1}));
}

TEST(LossScale, FactorsAreTheOptions) {
  EXPECT_EQ(after({.initial = 64, .growth = 4, .interval = 1}, "c").scale, 256);
  EXPECT_EQ(after({.initial = 64, .backoff = 0.25, .hysteresis = 1}, "x").scale, 16);
}

TEST(LossScale, NeverFallsBelowTheLeast) {
  EXPECT_EQ(after({.initial = 8, .hysteresis = 1, .least = 3}, "x").scale, 4);
  EXPECT_EQ(after({.initial = 8, .hysteresis = 1, .least = 3}, "xx").scale, 3);
  EXPECT_EQ(after({.initial = 8, .hysteresis = 1, .least = 3}, "xxx").scale, 3);
}

TEST(LossScale, NeverGrowsAboveTheMost) {
  const LossScaleOptions options{.initial = 8, .interval = 1, .most = 24};
  EXPECT_EQ(after(options, "cc").scale, 24);
  EXPECT_EQ(after(options, "xcccc"), (LossScaleState{24, 0, 2})) << "hysteresis comes back";
  EXPECT_EQ(after({.interval = 1}, std::string(100, 'c')).scale, 16777216);
}

TEST(LossScale, SettlesBelowTheOverflowAndLosesTwoStepsOfEach2002) {
  LossScaler scaler({});
  int64_t overflows = 0;
  const auto run = [&](int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      const bool overflows_now = scaler.scale() > 5000;
      overflows += overflows_now;
      overflows_now ? scaler.step_overflowed() : scaler.step_was_clean();
    }
  };
  run(5);  // 65536 twice, 32768, 16384, 8192
  EXPECT_EQ(overflows, 5);
  EXPECT_EQ(scaler.state(), (LossScaleState{4096, 0, 0}));
  run(2000 + 7 * 2002);
  EXPECT_EQ(overflows, 5 + 7 * 2);
  EXPECT_EQ(scaler.state(), (LossScaleState{8192, 0, 2}));
}

TEST(LossScale, IsStuckAfterTwentyOverflowsThatCannotLowerIt) {
  LossScaler scaler({.initial = 4, .hysteresis = 2, .least = 1});
  take(scaler, "xxx");  // 4, 2, 1
  EXPECT_EQ(scaler.state(), (LossScaleState{1, 0, 0}));
  take(scaler, std::string(19, 'x'));
  EXPECT_FALSE(scaler.is_stuck());
  take(scaler, "x");
  EXPECT_TRUE(scaler.is_stuck());
  EXPECT_EQ(scaler.scale(), 1);
}

TEST(LossScale, HysteresisIsUsedUpBeforeOverflowsCountAsStuck) {
  LossScaler scaler({.initial = 1, .hysteresis = 5, .least = 1});
  take(scaler, std::string(5 + 19, 'x'));
  EXPECT_FALSE(scaler.is_stuck());
  take(scaler, "x");
  EXPECT_TRUE(scaler.is_stuck());
}

TEST(LossScale, OneCleanStepIsNoDivergence) {
  LossScaler scaler({.initial = 1, .hysteresis = 1, .least = 1});
  for (int round = 0; round < 10; ++round) {
    take(scaler, std::string(19, 'x') + "c");
    EXPECT_FALSE(scaler.is_stuck());
  }
}

TEST(LossScale, GoesOnFromItsStateAsIfItHadNotStopped) {
  const LossScaleOptions options{.initial = 64, .interval = 3};
  std::mt19937 random(7);
  std::string steps;
  for (int i = 0; i < 200; ++i) {
    steps += random() % 4 == 0 ? 'x' : 'c';
  }
  for (size_t cut = 0; cut <= steps.size(); ++cut) {
    LossScaler resumed(options);
    resumed.set_state(after(options, steps.substr(0, cut)));
    take(resumed, steps.substr(cut));
    EXPECT_EQ(resumed.state(), after(options, steps)) << cut;
  }
}

TEST(LossScale, AResumedRunIsNotStuckYet) {
  LossScaler scaler({.initial = 1, .hysteresis = 1, .least = 1});
  take(scaler, std::string(21, 'x'));
  EXPECT_TRUE(scaler.is_stuck());
  scaler.set_state(scaler.state());
  EXPECT_FALSE(scaler.is_stuck());
}

TEST(LossScale, AStateOfOtherOptionsIsBroughtWithinTheirLimits) {
  LossScaler scaler({.initial = 64, .interval = 10, .hysteresis = 2, .least = 4, .most = 128});
  scaler.set_state({1024, 50, 9});
  EXPECT_EQ(scaler.state(), (LossScaleState{128, 50, 2}));
  scaler.step_was_clean();
  EXPECT_EQ(scaler.state(), (LossScaleState{128, 0, 2})) << "a longer interval than ours is over";
  scaler.set_state({0.5, 0, 0});
  EXPECT_EQ(scaler.state(), (LossScaleState{4, 0, 0}));
}

TEST(LossScale, RefusesAnImpossibleState) {
  LossScaler scaler({});
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const LossScaleState& state : {LossScaleState{0, 0, 0},
                                      LossScaleState{-1, 0, 0},
                                      LossScaleState{infinity, 0, 0},
                                      LossScaleState{infinity - infinity, 0, 0},
                                      LossScaleState{1, -1, 0},
                                      LossScaleState{1, 0, -1}}) {
    EXPECT_FALSE(is_possible(state));
    EXPECT_THROW(scaler.set_state(state), InternalError);
  }
  EXPECT_EQ(scaler.state(), LossScaler({}).state());
}

TEST(LossScale, RefusesOptionsThatCannotWork) {
  EXPECT_THROW(LossScaler({.initial = 1, .least = 2}), InternalError);
  EXPECT_THROW(LossScaler({.initial = 4, .most = 2}), InternalError);
  EXPECT_THROW(LossScaler({.least = 0}), InternalError);
  EXPECT_THROW(LossScaler({.growth = 1}), InternalError);
  EXPECT_THROW(LossScaler({.backoff = 1}), InternalError);
  EXPECT_THROW(LossScaler({.backoff = 0}), InternalError);
  EXPECT_THROW(LossScaler({.interval = 0}), InternalError);
  EXPECT_THROW(LossScaler({.hysteresis = 0}), InternalError);
}

TEST(LossScale, TheRecipeGivesItsOptions) {
  config::TrainOptions train;
  train.loss_scale = 512;
  train.loss_scale_interval = 7;
  train.loss_scale_least = 0.25;
  train.loss_scale_hysteresis = 3;
  const LossScaleOptions options = loss_scale_options(train);
  EXPECT_EQ(options.initial, 512);
  EXPECT_EQ(options.interval, 7);
  EXPECT_EQ(options.least, 0.25);
  EXPECT_EQ(options.hysteresis, 3);
}

TEST(LossScale, TheRecipesDefaultsAreItsOwn) {
  const LossScaleOptions ours, recipe = loss_scale_options({});
  EXPECT_EQ(recipe.initial, ours.initial);
  EXPECT_EQ(recipe.interval, ours.interval);
  EXPECT_EQ(recipe.least, ours.least);
  EXPECT_EQ(recipe.hysteresis, ours.hysteresis);
}

}  // namespace
}  // namespace penstock::optim
