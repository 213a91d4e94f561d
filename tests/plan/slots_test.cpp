#include "penstock/plan/slots.h"

#include <algorithm>
#include <cstdio>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/plan/rank_memory.h"
#include "penstock/plan/stage_use.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"
#include "penstock/schedule/clock.h"

#include "plan/all_slots.h"
#include "plan/random_chains.h"

namespace penstock::plan {

namespace {

using schedule::Kind;
using test::Dice;

constexpr Kind kAllKinds[] = {Kind::GPipe,
                              Kind::OneFOneB,
                              Kind::Interleaved,
                              Kind::ZeroBubbleH1,
                              Kind::ZeroBubbleH2,
                              Kind::ZeroBubbleV};

std::vector<int32_t> random_cuts(Dice& dice, int32_t layers, int32_t stages) {
  std::vector<int32_t> cuts{0};
  for (int32_t stage = 1; stage < stages; ++stage) {
    cuts.push_back(static_cast<int32_t>(dice.between(cuts.back() + 1, layers - (stages - stage))));
  }
  cuts.push_back(layers);
  return cuts;
}

CostTable random_chain(Dice& dice, int64_t layers, int64_t most_carried) {
  return dice.chance(60)
             ? test::small_chain(dice, layers)
             : test::rich_chain(
                   dice, layers, {.most_size = 6, .most_modes = 2, .most_carried = most_carried});
}

// A pipeline to plan, with limits between the least and what keeping everything takes.
struct Case {
  CostTable table;
  schedule::Schedule schedule;
  std::vector<int32_t> cuts;
  std::vector<int64_t> limits = {};

  SlotsAnswer solve(SlotMode mode, const std::vector<int64_t>& limit_bytes) const {
    return choose_slots({.table = table,
                         .schedule = schedule,
                         .cuts = cuts,
                         .limit_bytes = limit_bytes,
                         .mode = mode});
  }
};

Case random_case(Dice& dice, Kind kind, int32_t most_layers, int64_t most_carried = 3) {
  const int32_t ranks = static_cast<int32_t>(dice.between(1, 4));
  schedule::Schedule schedule =
      make_schedule(kind, ranks, static_cast<int32_t>(dice.between(1, 7)), 2);
  const int32_t stages = schedule.stages();
  const int32_t layers = static_cast<int32_t>(dice.between(stages, std::max(stages, most_layers)));
  Case one{random_chain(dice, layers, most_carried),
           std::move(schedule),
           random_cuts(dice, layers, stages)};
  const SlotsAnswer kept = one.solve(SlotMode::KeepAll, {});
  const SlotsAnswer least =
      one.solve(SlotMode::Apart, std::vector<int64_t>(static_cast<size_t>(ranks), 0));
  for (size_t rank = 0; rank < kept.peak_bytes.size(); ++rank) {
    one.limits.push_back(dice.between(least.least_bytes[rank],
                                      std::max(least.least_bytes[rank], kept.peak_bytes[rank])));
  }
  return one;
}

// The program of an answer: proved, within the limits, and as fast as promised.
void expect_program(const Case& one,
                    const SlotsAnswer& answer,
                    const std::vector<int64_t>& limits) {
  const Pipeline pipeline{one.schedule, one.cuts, answer.operations, {}};
  const Holdings nothing{.ranks = std::vector<RankHoldings>(one.schedule.turns.size())};
  const program::Program program = lower_pipeline(one.table, pipeline, nothing, 0);
  const program::Verdict verdict = program::verify(program);
  ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
  for (size_t rank = 0; rank < limits.size(); ++rank) {
    EXPECT_LE(answer.peak_bytes[rank], limits[rank]);
    EXPECT_LE(verdict.peaks[rank].bytes, answer.peak_bytes[rank]);
    if (one.schedule.stages() == 1) {  // nothing is handed on
      EXPECT_EQ(verdict.peaks[rank].bytes, answer.peak_bytes[rank]);
    }
  }
  EXPECT_NEAR(program::simulate(program).seconds,
              (one.table.clear_s + one.table.step_s) / one.schedule.ranks() + answer.seconds,
              1e-9 * answer.seconds);
}

}  // namespace

TEST(Slots, AreSeldomSlowerThanTheBestOfAllAssignments) {
  Dice dice(31);
  int cases = 0, slower = 0, larger = 0;
  double worst = 1, sum = 0;
  constexpr double kTransfer = 0.5;
  while (cases < 400 && !HasFailure()) {
    const int32_t stages = static_cast<int32_t>(dice.between(1, 3));
    const int32_t layers = static_cast<int32_t>(dice.between(stages, 5));
    const bool is_gpipe = dice.chance(50);
    const int32_t micro_batches = static_cast<int32_t>(dice.between(2, is_gpipe ? 3 : 4));
    const Case one{random_chain(dice, layers, 0),
                   make_schedule(is_gpipe ? Kind::GPipe : Kind::OneFOneB, stages, micro_batches),
                   random_cuts(dice, layers, stages)};
    SCOPED_TRACE(format_costs(one.table));
    test::AllSlots all(one.table, one.schedule, one.cuts);
    if (!all.is_small()) {
      continue;
    }
    const SlotsAnswer kept = one.solve(SlotMode::KeepAll, {});
    std::vector<int64_t> least, limits;
    for (int32_t rank = 0; rank < stages; ++rank) {
      least.push_back(all.least_bytes(rank));
      const int64_t most = std::max(least.back(), kept.peak_bytes[static_cast<size_t>(rank)]);
      limits.push_back(dice.between(least.back(), most));
    }
    const std::optional<double> truth = all.fastest(limits, kTransfer);
    if (!truth.has_value()) {
      continue;
    }
    ++cases;
    const SlotsAnswer answer = choose_slots({.table = one.table,
                                             .schedule = one.schedule,
                                             .cuts = one.cuts,
                                             .limit_bytes = limits,
                                             .link = {.latency_s = kTransfer}});
    ASSERT_TRUE(answer.is_feasible);
    for (size_t rank = 0; rank < limits.size(); ++rank) {
      EXPECT_GE(answer.least_bytes[rank], least[rank]) << "less than any";
      larger += answer.least_bytes[rank] > least[rank] ? 1 : 0;
      EXPECT_LE(answer.peak_bytes[rank], limits[rank]);
    }
    EXPECT_GE(answer.seconds, *truth * (1 - 1e-12)) << "faster than any";
    const double ratio = answer.seconds / *truth;
    slower += ratio > 1 + 1e-9 ? 1 : 0;
    worst = std::max(worst, ratio);
    sum += ratio - 1;
  }
  std::printf(
      "%d of %d slower than the best, at worst %.4f times, %.5f on average; %d least limits "
      "larger\n",
      slower,
      cases,
      worst,
      1 + sum / cases,
      larger);
  // Measured with these chains; a change that loses more has lost something.
  EXPECT_LE(slower, 12);
  EXPECT_LE(worst, 1.06);
  EXPECT_EQ(larger, 0);
}

TEST(Slots, BecomeAProgramWithinTheLimitsAndAsFastAsPromised) {
  Dice dice(32);
  for (int i = 0; i < 20 && !HasFailure(); ++i) {
    for (const Kind kind : kAllKinds) {
      const Case one = random_case(dice, kind, 12);
      SCOPED_TRACE(cat("case ", i, ", ", kind_name(kind), ": ", format_costs(one.table)));
      for (const SlotMode mode : {SlotMode::Uniform, SlotMode::Apart}) {
        const SlotsAnswer answer = one.solve(mode, one.limits);
        if (answer.is_feasible) {
          expect_program(one, answer, one.limits);
        } else {
          EXPECT_EQ(mode, SlotMode::Uniform);
        }
      }
    }
  }
}

TEST(Slots, ApartAreNeverSlowerThanUniform) {
  Dice dice(33);
  int faster = 0;
  for (int i = 0; i < 15 && !HasFailure(); ++i) {
    for (const Kind kind : kAllKinds) {
      const Case one = random_case(dice, kind, 10);
      const SlotsAnswer uniform = one.solve(SlotMode::Uniform, one.limits);
      const SlotsAnswer apart = one.solve(SlotMode::Apart, one.limits);
      ASSERT_TRUE(apart.is_feasible);
      for (const auto& stage : uniform.operations) {
        EXPECT_EQ(std::count(stage.begin(), stage.end(), stage.front()), std::ssize(stage));
      }
      if (uniform.is_feasible) {
        EXPECT_LE(apart.seconds, uniform.seconds * (1 + 1e-12));
        faster += apart.seconds < uniform.seconds ? 1 : 0;
      }
    }
  }
  EXPECT_GT(faster, 20);
}

TEST(Slots, SayTheLeastBytesAndTheTurnThatNeedsThem) {
  Dice dice(34);
  for (int i = 0; i < 15 && !HasFailure(); ++i) {
    for (const Kind kind : kAllKinds) {
      const Case one = random_case(dice, kind, 10);
      for (const SlotMode mode : {SlotMode::KeepAll, SlotMode::Uniform, SlotMode::Apart}) {
        std::vector<int64_t> limits = one.solve(mode, {}).least_bytes;
        EXPECT_TRUE(one.solve(mode, limits).is_feasible);
        --limits.back();
        const SlotsAnswer answer = one.solve(mode, limits);
        EXPECT_FALSE(answer.is_feasible);
        EXPECT_EQ(answer.least_bytes.back(), limits.back() + 1);
        EXPECT_EQ(answer.peak_bytes, answer.least_bytes);
        const auto& turns = one.schedule.turns.back();
        EXPECT_EQ(std::count(turns.begin(), turns.end(), answer.binding.back()), 1);
      }
    }
  }
}

TEST(Slots, RecomputeNothingWithoutALimit) {
  const CostTable table = test::homogeneous(8, {.forward = 1, .backward = 2, .size = 1, .kept = 3});
  const schedule::Schedule schedule = make_schedule(Kind::OneFOneB, 4, 8);
  for (const SlotMode mode : {SlotMode::KeepAll, SlotMode::Uniform, SlotMode::Apart}) {
    const SlotsAnswer answer =
        choose_slots({.table = table, .schedule = schedule, .cuts = {0, 2, 4, 6, 8}, .mode = mode});
    EXPECT_TRUE(answer.is_feasible);
    EXPECT_EQ(answer.recomputed_forwards, 0);
    EXPECT_EQ(answer.seconds, 66);  // (m + p - 1) turns of 2 layers
  }
}

TEST(Slots, TakeTheSecondsOfTheSchedulesClock) {
  Dice dice(35);
  for (int i = 0; i < 15 && !HasFailure(); ++i) {
    for (const Kind kind : kAllKinds) {
      const Case one = random_case(dice, kind, 8, 0);
      const SlotsAnswer answer = choose_slots({.table = one.table,
                                               .schedule = one.schedule,
                                               .cuts = one.cuts,
                                               .limit_bytes = {},
                                               .link = {.latency_s = 0.25},
                                               .mode = SlotMode::KeepAll});
      const bool splits = splits_backward(kind);
      const auto seconds_of = [&](const schedule::Turn& turn) {
        const StageOperations& operations = answer.operations[static_cast<size_t>(turn.stage)][0];
        const StageUse use = use_of(one.table, one.cuts, turn.stage, operations, splits);
        return turn.phase == schedule::Phase::Forward          ? use.forward_s
               : turn.phase == schedule::Phase::BackwardWeight ? use.weight_s
                                                               : use.backward_s;
      };
      EXPECT_NEAR(answer.seconds, run_clock(one.schedule, seconds_of, 0.25).seconds, 1e-9);
    }
  }
}

TEST(Slots, GiveLateBackwardsOfGPipeTheRoomThatEarlierOnesLeft) {
  // All ten are held at the turn-round, so the first backward has little room; the last has it all.
  const CostTable table = test::homogeneous(6, {.forward = 1, .backward = 2, .size = 1, .kept = 5});
  const schedule::Schedule schedule = make_schedule(Kind::GPipe, 1, 10);
  const SlotsAnswer answer =
      choose_slots({.table = table, .schedule = schedule, .cuts = {0, 6}, .limit_bytes = {60}});
  ASSERT_TRUE(answer.is_feasible);
  const auto room_beside = [&](size_t micro_batch) {
    const StageUse use = use_of(table, {0, 6}, 0, answer.operations[0][micro_batch], false);
    return use.backward_peak - use.held;
  };
  EXPECT_GT(room_beside(9), room_beside(0));
  const SlotsAnswer uniform = choose_slots({.table = table,
                                            .schedule = schedule,
                                            .cuts = {0, 6},
                                            .limit_bytes = {60},
                                            .mode = SlotMode::Uniform});
  EXPECT_LT(answer.seconds, uniform.seconds);
}

}  // namespace penstock::plan
