#include "penstock/plan/cuts.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"

#include "plan/random_chains.h"

namespace penstock::plan {

namespace {

using test::Dice;

CostTable random_chain(Dice& dice, int64_t layers) {
  CostTable table =
      dice.chance(50) ? test::small_chain(dice, layers) : test::rich_chain(dice, layers, {});
  for (LayerCost& layer : table.layers) {
    layer.parameter_bytes = dice.between(0, 20);
    layer.optimizer_bytes = 2 * layer.parameter_bytes;
  }
  table.loss.parameter_bytes = dice.between(0, 20);
  return table;
}

struct Quality {
  int64_t beyond = 0;  // of the limits, on the worst rank
  double slowest = 0;  // rank

  auto operator<=>(const Quality&) const = default;
};

Quality quality(const CostTable& table,
                const CutRequest& request,
                const std::vector<int32_t>& cuts) {
  const int32_t stages = static_cast<int32_t>(cuts.size()) - 1;
  const StageCosts costs(table, stages, request);
  std::vector<double> seconds(cuts.size(), 0);
  std::vector<int64_t> bytes(cuts.size(), 0);
  Quality result;
  for (int32_t stage = 0; stage < stages; ++stage) {
    const size_t at = static_cast<size_t>(stage);
    const size_t rank = request.rank_of.empty() ? at : static_cast<size_t>(request.rank_of[at]);
    const StageCost cost = costs.of(stage, cuts[at], cuts[at + 1]);
    seconds[rank] += cost.seconds;
    bytes[rank] += cost.bytes;
    if (!request.limit_bytes.empty()) {
      result.beyond = std::max(result.beyond, bytes[rank] - request.limit_bytes[rank]);
    }
    result.slowest = std::max(result.slowest, seconds[rank]);
  }
  return result;
}

void for_all_cuts(int32_t layers,
                  int32_t stages,
                  const std::function<void(const std::vector<int32_t>&)>& visit) {
  std::vector<int32_t> cuts{0};
  const std::function<void()> grow = [&] {
    if (static_cast<int32_t>(cuts.size()) == stages) {
      cuts.push_back(layers);
      visit(cuts);
      cuts.pop_back();
      return;
    }
    for (int32_t cut = cuts.back() + 1; cut < layers; ++cut) {
      cuts.push_back(cut);
      grow();
      cuts.pop_back();
    }
  };
  grow();
}

Quality best_quality(const CostTable& table, int32_t stages, const CutRequest& request) {
  Quality best{std::numeric_limits<int64_t>::max(), 0};
  for_all_cuts(
      static_cast<int32_t>(table.layers.size()), stages, [&](const std::vector<int32_t>& cuts) {
        best = std::min(best, quality(table, request, cuts));
      });
  return best;
}

void expect_error(const std::vector<int32_t>& given,
                  int32_t layers,
                  int32_t stages,
                  const std::string& text) {
  try {
    check_cuts(given, layers, stages);
    FAIL() << "no error: " << text;
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(), text);
  }
}

}  // namespace

// A stage sends its output on and the gradient of its input back.
TEST(Cuts, CountTheBytesOfBothMessages) {
  CostTable table;
  for (int64_t i = 0; i < 3; ++i) {
    table.layers.push_back({.name = cat("layer ", i),
                            .input_bytes = 10 + i,
                            .output_bytes = 11 + i,
                            .input_gradient_bytes = 20 + i,
                            .output_gradient_bytes = 21 + i,
                            .modes = {{.forward_s = 100, .backward_s = 200, .saved_bytes = 50}}});
  }
  const StageCosts costs(table, /*stages=*/3, {.link = {.latency_s = 0.5, .bytes_per_s = 1}});
  EXPECT_DOUBLE_EQ(costs.of(0, 0, 1).seconds, 300 + 0.5 + 11);
  EXPECT_DOUBLE_EQ(costs.of(1, 1, 2).seconds, 300 + 0.5 + 12 + 0.5 + 21);
  EXPECT_DOUBLE_EQ(costs.of(2, 2, 3).seconds, 300 + 0.5 + 22);
}

TEST(Cuts, AreTheBestOfAllWithOneStageForEachRank) {
  Dice dice(51);
  int bound_by_memory = 0, beyond = 0;
  for (int i = 0; i < 600 && !HasFailure(); ++i) {
    const int32_t layers = static_cast<int32_t>(dice.between(1, 9));
    const int32_t stages = static_cast<int32_t>(dice.between(1, std::min(layers, 5)));
    const CostTable table = random_chain(dice, layers);
    CutRequest request{.link = {.latency_s = dice.chance(30) ? 1.0 : 0.0}};
    const Quality free = best_quality(table, stages, request);
    if (dice.chance(70)) {
      request.memory = dice.chance(50) ? CutMemory::KeepAll : CutMemory::Recompute;
      for (int32_t stage = 0; stage < stages; ++stage) {
        request.limit_bytes.push_back(dice.between(20, 300));
        request.in_flight.push_back(stages - stage);
      }
    }
    SCOPED_TRACE(cat("case ", i));
    const std::vector<int32_t> cuts = choose_cuts(table, stages, request);
    const Quality best = best_quality(table, stages, request);
    const Quality chosen = quality(table, request, cuts);
    EXPECT_EQ(chosen.beyond, best.beyond);
    EXPECT_DOUBLE_EQ(chosen.slowest, best.slowest);
    bound_by_memory += best.beyond == 0 && best.slowest > free.slowest ? 1 : 0;
    beyond += best.beyond > 0 ? 1 : 0;
  }
  EXPECT_GT(bound_by_memory, 30);
  EXPECT_GT(beyond, 30);
}

TEST(Cuts, AreSeldomWorseThanTheBestWithTwoStagesForEachRank) {
  Dice dice(52);
  int worse = 0;
  double worst = 1;
  for (int i = 0; i < 300; ++i) {
    const int32_t ranks = static_cast<int32_t>(dice.between(1, 3));
    const int32_t layers = static_cast<int32_t>(dice.between(2 * ranks, 9));
    const CostTable table = random_chain(dice, layers);
    CutRequest request;
    const bool is_v = dice.chance(50);
    for (int32_t stage = 0; stage < 2 * ranks; ++stage) {
      request.rank_of.push_back(is_v && stage >= ranks ? 2 * ranks - 1 - stage : stage % ranks);
    }
    const Quality best = best_quality(table, 2 * ranks, request);
    const Quality chosen = quality(table, request, choose_cuts(table, 2 * ranks, request));
    EXPECT_GE(chosen.slowest, best.slowest);
    worse += chosen.slowest > best.slowest ? 1 : 0;
    worst = std::max(worst, chosen.slowest / best.slowest);
  }
  std::printf("%d of 300 slower than the best cuts, at worst %.3f times\n", worse, worst);
  // Measured when this was written.
  EXPECT_LE(worse, 12);
  EXPECT_LE(worst, 1.17);
}

TEST(Cuts, GiveTheStageWithTheLossFewerLayers) {
  CostTable table = test::homogeneous(12, {.forward = 1, .backward = 2, .size = 1, .kept = 3});
  table.loss.seconds = 6;
  EXPECT_EQ(choose_cuts(table, 2, {}), (std::vector<int32_t>{0, 7, 12}));
}

TEST(Cuts, FollowTheMemoryOfWhatIsInFlight) {
  // Four micro-batches wait at the first stage, one at the last.
  const CostTable table =
      test::homogeneous(8, {.forward = 1, .backward = 2, .size = 1, .kept = 10});
  const CutRequest request{
      .memory = CutMemory::KeepAll, .limit_bytes = {100, 100}, .in_flight = {4, 1}};
  EXPECT_EQ(choose_cuts(table, 2, request), (std::vector<int32_t>{0, 2, 8}));
}

TEST(Cuts, OfMoreStagesThanLayersAreRefused) {
  const CostTable table = test::homogeneous(3, {.forward = 1, .backward = 2, .size = 1, .kept = 3});
  EXPECT_THROW(choose_cuts(table, 4, {}), ConfigError);
}

TEST(Cuts, GivenByTheUserAreChecked) {
  EXPECT_EQ(check_cuts({3, 6}, 9, 3), (std::vector<int32_t>{0, 3, 6, 9}));
  EXPECT_EQ(check_cuts({}, 9, 1), (std::vector<int32_t>{0, 9}));
  expect_error(
      {3},
      9,
      3,
      "plan.cuts = \"3\": 3 stages need 2 cuts, the first layer of every stage but the first");
  expect_error({6, 3}, 9, 3, "plan.cuts = \"6,3\": 3 comes after 6; cuts must rise");
  expect_error({3, 3}, 9, 3, "plan.cuts = \"3,3\": 3 comes after 3; cuts must rise");
  expect_error({0, 3}, 9, 3, "plan.cuts = \"0,3\": 0 is not between 1 and 8");
  expect_error({3, 9}, 9, 3, "plan.cuts = \"3,9\": 9 is not between 1 and 8");
  expect_error(
      {1, 2, 3},
      3,
      4,
      "4 stages for 3 layers; a stage needs one layer at least: use fewer ranks or chunks");
}

}  // namespace penstock::plan
