// What a pipeline's plan makes of what its ranks hold.
#include "penstock/plan/pipeline_solver.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/program/verify.h"

#include "plan/random_chains.h"
#include "plan/small_chains.h"
#include "plan/small_model.h"

namespace penstock::plan {

namespace {

// Four layers of which each has weights, and a loss that has some, too.
CostTable four_layers() {
  CostTable table = test::homogeneous(4, {.forward = 1, .backward = 2, .size = 4, .kept = 12});
  for (LayerCost& layer : table.layers) {
    layer.parameter_bytes = layer.gradient_bytes = 10;
    layer.optimizer_bytes = 20;
  }
  table.loss.parameter_bytes = 5;
  return table;
}

// On two ranks: a table that the first layer and the loss share, of `shared_bytes`.
Holdings tied(int64_t shared_bytes) {
  Holdings holdings{.units = {test::table_unit({0, 4})}};
  for (int rank = 0; rank < 2; ++rank) {
    holdings.ranks.push_back(test::held_units({{.unit = 0}}));
    holdings.ranks.back().shared_bytes = {shared_bytes};
  }
  return holdings;
}

PipelineRequest two_ranks(int64_t limit_bytes) {
  return {.kind = schedule::Kind::OneFOneB,
          .ranks = 2,
          .micro_batches = 3,
          .first_layers = {2},
          .limit_bytes = limit_bytes,
          .link = {.latency_s = 0.25}};
}

}  // namespace

TEST(PipelineSolver, RanksHoldWhatTheTableSaysOfTheirLayers) {
  const PipelineAnswer result = solve_pipeline(four_layers(), two_ranks(0));
  EXPECT_EQ(
      program::held_by_name(result.program.ranks[0]),
      (std::vector<program::Held>{{"weights", 20}, {"gradients", 20}, {"optimizer state", 40}}));
  EXPECT_EQ(
      program::held_by_name(result.program.ranks[1]),
      (std::vector<program::Held>{{"weights", 25}, {"gradients", 20}, {"optimizer state", 40}}));
  EXPECT_TRUE(result.program.units.empty());
}

TEST(PipelineSolver, HoldingsOfARequestTakeTheirPlace) {
  PipelineRequest request = two_ranks(0);
  request.holdings = [](const Pipeline&) { return tied(8); };
  const PipelineAnswer bare = solve_pipeline(four_layers(), two_ranks(0));
  const PipelineAnswer result = solve_pipeline(four_layers(), request);
  EXPECT_EQ(result.program.units, tied(8).units);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(result.program.ranks[rank].persistent_bytes(), 100 + 40 + 20);
    EXPECT_EQ(result.peak_bytes[rank] - result.program.ranks[rank].persistent_bytes(),
              bare.peak_bytes[rank] - bare.program.ranks[rank].persistent_bytes());
  }
  // One more message at the end of the step.
  EXPECT_EQ(result.step_s, bare.step_s + 0.25);
}

TEST(PipelineSolver, WhatATableNeedsBetweenStagesIsWithinTheLimit) {
  PipelineRequest request = two_ranks(0);
  request.holdings = [](const Pipeline&) { return tied(5000); };
  const PipelineAnswer free = solve_pipeline(four_layers(), request);
  EXPECT_EQ(free.peak_bytes, std::vector<int64_t>(2, 160 + 5000));
  EXPECT_EQ(free.binding[1], "reduce of table, over table");
  request.limit_bytes = 160 + 5000;
  EXPECT_TRUE(solve_pipeline(four_layers(), request).is_feasible);
  request.limit_bytes = 160 + 4999;
  const PipelineAnswer tight = solve_pipeline(four_layers(), request);
  EXPECT_FALSE(tight.is_feasible);
  EXPECT_EQ(tight.least_bytes, std::vector<int64_t>(2, 160 + 5000));
}

// Over tables with every field set, in sizes that are no small whole numbers. Cuts and slots are looked for
// anew under each limit, and not everywhere found: a few plans are slower than those of a lower limit.
TEST(PipelineSolver, KeepingEverythingFitsWhereItNeedsNoMoreAndMoreMemoryIsSeldomSlower) {
  test::Dice dice(77);
  double worst = 1;
  int slower = 0, compared = 0, above_whole = 0;
  for (int i = 0; i < 12; ++i) {
    const int32_t ranks = static_cast<int32_t>(dice.between(2, 4));
    const CostTable table =
        test::rich_chain(dice, 2 * ranks + dice.between(0, 4), {.most_size = 1'000'003});
    PipelineRequest request{.ranks = ranks,
                            .micro_batches = static_cast<int32_t>(dice.between(ranks, 8)),
                            .chunks = 2,
                            .mode = SlotMode::KeepAll,
                            .link = {.latency_s = 0.125}};
    if (dice.chance(70)) {
      constexpr schedule::Kind kKinds[] = {schedule::Kind::OneFOneB,
                                           schedule::Kind::GPipe,
                                           schedule::Kind::Interleaved,
                                           schedule::Kind::ZeroBubbleH1};
      request.kind = kKinds[dice.between(0, 3)];
    }
    const PipelineAnswer whole = solve_pipeline(table, request);
    const int64_t most = *std::max_element(whole.peak_bytes.begin(), whole.peak_bytes.end());
    request.mode = SlotMode::Apart;
    request.limit_bytes = 1;
    const PipelineAnswer none = solve_pipeline(table, request);
    const int64_t least = *std::max_element(none.least_bytes.begin(), none.least_bytes.end());
    double before = std::numeric_limits<double>::infinity();
    for (int k = 0; k <= 8; ++k) {
      request.limit_bytes = least + (most - least) * k / 8;
      const PipelineAnswer answer = solve_pipeline(table, request);
      if (!answer.is_feasible) {
        continue;
      }
      ++compared;
      slower += answer.step_s > before ? 1 : 0;
      worst = std::max(worst, answer.step_s / before);
      before = std::min(before, answer.step_s);
    }
    above_whole += before > whole.step_s ? 1 : 0;
  }
  std::printf("%d of %d slower, at worst %.4f times, %d above whole\n",
              slower,
              compared,
              worst,
              above_whole);
  EXPECT_EQ(above_whole, 0);
  EXPECT_LE(slower, compared / 5);  // 18 of 108, by 1.4 % at worst
  EXPECT_LE(worst, 1.02);
}

}  // namespace penstock::plan
