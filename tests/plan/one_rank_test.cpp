// Plans and the answers where there is none.
#include "penstock/plan/one_rank.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"

#include "plan/exhaustive_search.h"
#include "plan/random_chains.h"
#include "plan/small_model.h"
#include "support/error_text.h"

namespace penstock::plan {

namespace {

using test::Dice;
using test::error_text;
using test::ExhaustiveSearch;

constexpr Recompute kKinds[] = {Recompute::None, Recompute::All, Recompute::Sqrt, Recompute::Rotor};

OneRankAnswer plan_of(const CostTable& table,
                      Recompute recompute,
                      int64_t limit_bytes,
                      int32_t micro_batches = 1) {
  return solve_one_rank(table,
                        {.recompute = recompute,
                         .limit_bytes = limit_bytes,
                         .micro_batches = micro_batches,
                         .rotor = {.threads = 1}});
}

// What holds for every result, whether feasible or not.
void expect_consistent(const CostTable& table,
                       const OneRankAnswer& result,
                       Recompute recompute,
                       int64_t limit_bytes,
                       int32_t micro_batches) {
  EXPECT_EQ(result.plan.recompute, recompute);
  EXPECT_EQ(result.plan.micro_batches, micro_batches);
  EXPECT_EQ(result.is_feasible, limit_bytes == 0 || limit_bytes >= result.least_bytes);
  const program::Verdict verdict = program::verify(result.program);
  ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
  EXPECT_EQ(result.peak_bytes, verdict.peaks[0].bytes);
  if (table.carried.empty()) {  // then it is exact
    EXPECT_GE(result.peak_bytes, result.least_bytes);
  }
  EXPECT_EQ(result.step_s, program::simulate(result.program).seconds);
  EXPECT_FALSE(result.binding.empty());
  if (result.is_feasible) {
    EXPECT_EQ(result.program.ranks[0].limit_bytes, limit_bytes);
    EXPECT_TRUE(limit_bytes == 0 || result.peak_bytes <= limit_bytes);
  } else {
    EXPECT_EQ(result.peak_bytes, result.least_bytes);
  }
  const OneRankAnswer kept = plan_of(table, Recompute::None, 0, micro_batches);
  EXPECT_EQ(result.unlimited_s, kept.step_s);
  EXPECT_EQ(result.unlimited_bytes, kept.peak_bytes);
}

// Four layers, one of them large; rotor has something to choose.
CostTable four_layers() {
  CostTable table = test::make_chain(4,
                                     {{.forward = 1, .backward = 2, .size = 4, .kept = 12},
                                      {.forward = 2, .backward = 4, .size = 4, .kept = 30},
                                      {.forward = 1, .backward = 2, .size = 4, .kept = 12},
                                      {.forward = 1, .backward = 2, .size = 4, .kept = 8}},
                                     /*loss_extra=*/5);
  table.held = {{"parameters", 50}};
  table.clear_s = 0.5;
  table.step_s = 1.5;
  return table;
}

}  // namespace

TEST(Planner, KindsHaveNames) {
  for (const Recompute kind : kKinds) {
    EXPECT_EQ(parse_recompute(recompute_name(kind), true), kind);
    EXPECT_EQ(parse_recompute(recompute_name(kind), false), kind);
  }
  EXPECT_EQ(recompute_name(Recompute::Sqrt), "sqrt");
}

TEST(Planner, AutoIsRotorWhereThereIsALimit) {
  EXPECT_EQ(parse_recompute("auto", true), Recompute::Rotor);
  EXPECT_EQ(parse_recompute("auto", false), Recompute::None);
}

TEST(Planner, AnUnknownKindIsAnErrorThatListsThem) {
  EXPECT_EQ(error_text<ConfigError>([] { parse_recompute("some", true); }),
            "recompute = \"some\"; it takes \"auto\", \"none\", \"all\", \"sqrt\" or \"rotor\"");
}

TEST(Planner, WithoutALimitEveryKindIsFeasible) {
  const CostTable table = four_layers();
  for (const Recompute kind : kKinds) {
    const OneRankAnswer result = plan_of(table, kind, 0, 2);
    EXPECT_TRUE(result.is_feasible);
    expect_consistent(table, result, kind, 0, 2);
    EXPECT_EQ(result.program.ranks[0].limit_bytes, 0);
  }
  const OneRankAnswer none = plan_of(table, Recompute::None, 0, 2);
  EXPECT_EQ(none.step_s, 2 + 2 * 15);
  EXPECT_EQ(none.step_s, none.unlimited_s);
  EXPECT_EQ(plan_of(table, Recompute::Rotor, 0, 2).step_s, none.step_s);
}

TEST(Planner, TheKeptChainIsHighestWhereItsNumbersSay) {
  const OneRankAnswer none = plan_of(four_layers(), Recompute::None, 0, 2);
  // Parameters, two inputs, four states, the gradient of the loss and its extra.
  EXPECT_EQ(none.peak_bytes, 50 + 2 * 4 + (12 + 30 + 12 + 8) + 4 + 5);
  EXPECT_EQ(none.binding, "loss, micro-batch 0");
}

TEST(Planner, SimplePlansFitExactlyTheirPeak) {
  const CostTable table = four_layers();
  for (const Recompute kind : {Recompute::None, Recompute::All, Recompute::Sqrt}) {
    const int64_t peak = plan_of(table, kind, 0).peak_bytes;
    const OneRankAnswer at_peak = plan_of(table, kind, peak);
    EXPECT_TRUE(at_peak.is_feasible);
    EXPECT_EQ(at_peak.least_bytes, peak);
    const OneRankAnswer below = plan_of(table, kind, peak - 1);
    EXPECT_FALSE(below.is_feasible);
    EXPECT_EQ(below.least_bytes, peak);
    // What does not fit is handed back all the same, for people to look at.
    EXPECT_EQ(below.plan.operations, at_peak.plan.operations);
    EXPECT_EQ(below.program.ranks[0].limit_bytes, 0);
  }
}

TEST(Planner, TheLeastLimitOfEveryKindIsExactToTheByte) {
  Dice dice(70);
  for (int i = 0; i < 400 && !HasFailure(); ++i) {
    const CostTable table = test::rich_chain(dice, dice.between(1, 8), {.most_carried = 0});
    const int32_t micro_batches = static_cast<int32_t>(dice.between(1, 3));
    SCOPED_TRACE(cat("chain ", i));
    for (const Recompute kind : kKinds) {
      SCOPED_TRACE(recompute_name(kind));
      const int64_t least = plan_of(table, kind, 1, micro_batches).least_bytes;
      for (const int64_t limit : {least - 1, least, least + dice.between(1, 40)}) {
        const OneRankAnswer result = plan_of(table, kind, limit, micro_batches);
        EXPECT_EQ(result.least_bytes, least);
        EXPECT_EQ(result.is_feasible, limit >= least);
        expect_consistent(table, result, kind, limit, micro_batches);
      }
      EXPECT_EQ(plan_of(table, kind, least, micro_batches).peak_bytes, least);
    }
  }
}

TEST(Planner, RotorFitsWhereverAnotherKindDoesAndIsNotSlower) {
  Dice dice(71);
  for (int i = 0; i < 400 && !HasFailure(); ++i) {
    CostTable table = test::rich_chain(dice, dice.between(1, 8), {.most_carried = 0});
    table.target_bytes = 0;  // with targets: the two tests below
    const int32_t micro_batches = static_cast<int32_t>(dice.between(1, 3));
    SCOPED_TRACE(cat("chain ", i));
    for (const Recompute kind : {Recompute::None, Recompute::All, Recompute::Sqrt}) {
      const OneRankAnswer other = plan_of(table, kind, 0, micro_batches);
      const OneRankAnswer rotor = plan_of(table, Recompute::Rotor, other.peak_bytes, micro_batches);
      EXPECT_TRUE(rotor.is_feasible);
      EXPECT_LE(rotor.step_s, other.step_s) << recompute_name(kind);
    }
  }
}

// What is carried counts as if it were there all the time: plans fit, if not always as tightly as they
// could.
TEST(Planner, CarriedElementsFitEveryLimitFromTheLeastOn) {
  Dice dice(75);
  int with_carried = 0;
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    const CostTable table = test::rich_chain(dice, dice.between(1, 8), {});
    const int32_t micro_batches = static_cast<int32_t>(dice.between(1, 3));
    SCOPED_TRACE(cat("chain ", i, ": ", format_costs(table)));
    with_carried += table.carried.empty() ? 0 : 1;
    for (const Recompute kind : kKinds) {
      SCOPED_TRACE(recompute_name(kind));
      const OneRankAnswer least = plan_of(table, kind, 1, micro_batches);
      double before = least.step_s;
      for (int64_t limit = least.least_bytes; limit < least.unlimited_bytes + 5; limit += 3) {
        const OneRankAnswer result = plan_of(table, kind, limit, micro_batches);
        EXPECT_TRUE(result.is_feasible);
        EXPECT_EQ(result.least_bytes, least.least_bytes);
        expect_consistent(table, result, kind, limit, micro_batches);
        EXPECT_LE(result.step_s, before) << "slower with more memory, " << limit;
        before = result.step_s;
      }
    }
    const OneRankAnswer none = plan_of(table, Recompute::None, 0, micro_batches);
    for (const int64_t limit : {int64_t{0}, none.peak_bytes}) {
      EXPECT_LE(plan_of(table, Recompute::Rotor, limit, micro_batches).step_s, none.step_s);
    }
  }
  EXPECT_GT(with_carried, 15);
}

TEST(Planner, RotorRecomputesNothingWhereKeepingEverythingFits) {
  // The targets go with the loss, and this chain is highest after it: in the first backward.
  CostTable table = test::make_chain(1,
                                     {{.forward = 6, .backward = 4, .size = 1, .kept = 3},
                                      {.forward = 4, .backward = 7, .size = 1, .kept = 1}});
  table.target_bytes = 1;
  const OneRankAnswer none = plan_of(table, Recompute::None, 0);
  EXPECT_EQ(plan_of(table, Recompute::Rotor, 0).step_s, none.step_s);
  EXPECT_EQ(plan_of(table, Recompute::Rotor, none.peak_bytes).step_s, none.step_s);
}

// Sizes in no small whole numbers: levels of memory round them up, and yet what keeping everything needs
// is enough for it.
TEST(Planner, KeepingEverythingFitsWhereItNeedsNoMore) {
  CostTable table =
      test::homogeneous(5, {.forward = 1, .backward = 2, .size = 2 << 20, .kept = 2 << 20});
  table.layers[2].modes[0].backward_extra_bytes = 6330688;
  const OneRankAnswer example = plan_of(table, Recompute::None, 0);
  for (const int64_t limit : {example.peak_bytes, int64_t{95} << 20}) {
    EXPECT_EQ(plan_of(table, Recompute::Rotor, limit).plan.operations, keep_everything(table));
  }
  Dice dice(76);
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    const CostTable rich = test::rich_chain(dice, dice.between(1, 12), {.most_size = 1'000'003});
    const int32_t micro_batches = static_cast<int32_t>(dice.between(1, 3));
    SCOPED_TRACE(cat("chain ", i));
    const OneRankAnswer none = plan_of(rich, Recompute::None, 0, micro_batches);
    const OneRankAnswer least = plan_of(rich, Recompute::Rotor, 1, micro_batches);
    double before = least.step_s;
    for (int k = 0; k <= 8; ++k) {
      const int64_t limit = least.least_bytes + (none.peak_bytes - least.least_bytes) * k / 8;
      if (limit >= least.least_bytes) {
        const OneRankAnswer one = plan_of(rich, Recompute::Rotor, limit, micro_batches);
        EXPECT_LE(one.step_s, before) << limit;
        before = one.step_s;
      }
    }
    EXPECT_LE(plan_of(rich, Recompute::Rotor, none.peak_bytes, micro_batches).step_s, none.step_s);
  }
}

TEST(Planner, TheLeastLimitOfRotorIsThatOfTheBestScheduleWithTargets) {
  Dice dice(72);
  int differ = 0;
  for (int i = 0; i < 600; ++i) {
    CostTable table = test::small_chain(dice, dice.between(1, 4));
    table.target_bytes = dice.between(0, 6);
    const OneRankAnswer result = plan_of(table, Recompute::Rotor, 1);
    const int64_t least = ExhaustiveSearch(table).least_bytes();
    EXPECT_GE(result.least_bytes, least);
    differ += result.least_bytes > least ? 1 : 0;
  }
  // Without targets the two are equal on thousands of chains (rotor_optimality_test.cpp).
  EXPECT_EQ(differ, 0);
}

TEST(Planner, SaysWhatHoldsMostAtTheLeastLimit) {
  CostTable table = four_layers();
  table.layers[1].modes[0].backward_extra_bytes = 100;
  for (const Recompute kind : kKinds) {
    EXPECT_EQ(plan_of(table, kind, 1).binding, "backward of layer1, micro-batch 0");
  }
  table = four_layers();
  table.step_extra_bytes = 1000;
  for (const Recompute kind : kKinds) {
    const OneRankAnswer result = plan_of(table, kind, 1);
    EXPECT_EQ(result.binding, "step");
    EXPECT_EQ(result.least_bytes, 50 + 1000);
  }
  // Keeping less cannot help where nothing is held beyond what was there.
  table = test::make_chain(5, {{.forward = 1, .backward = 1, .backward_extra = -5}});
  table.held = {{"parameters", 7}};
  const OneRankAnswer result = plan_of(table, Recompute::None, 11);
  EXPECT_FALSE(result.is_feasible);
  EXPECT_EQ(result.least_bytes, 12);
  EXPECT_EQ(result.binding, "parameters, optimizer state and inputs alone");
}

TEST(Planner, MicroBatchesShareTheMemoryAndMultiplyTheTime) {
  const CostTable table = four_layers();
  const OneRankAnswer one = plan_of(table, Recompute::Rotor, 110, 1);
  // Each further micro-batch waits with its input.
  const OneRankAnswer three = plan_of(table, Recompute::Rotor, 110 + 2 * 4, 3);
  EXPECT_TRUE(one.is_feasible);
  EXPECT_EQ(one.plan.operations, three.plan.operations);
  EXPECT_EQ(three.step_s - 2, 3 * (one.step_s - 2));
  EXPECT_EQ(three.peak_bytes, one.peak_bytes + 2 * 4);
  EXPECT_EQ(three.least_bytes, one.least_bytes + 2 * 4);
}

TEST(Planner, HoldingsTakeThePlaceOfTheTablesSums) {
  const CostTable table = four_layers();  // which holds 50 bytes
  const std::vector<program::Unit> units{test::own_unit(1), test::table_unit({0, 4})};
  RankHoldings held = test::held_units({{.unit = 0}, {.unit = 1, .shares = {0}}});
  held.values.push_back(fixed_value("pages", 7));
  const int64_t bytes = 2 * (100 + 40 + 20) + 30 + 7;
  ASSERT_EQ(held.bytes(), bytes);
  for (const Recompute kind : kKinds) {
    const auto plan_with = [&](int64_t limit_bytes) {
      return solve_one_rank(table,
                            {.recompute = kind,
                             .limit_bytes = limit_bytes,
                             .micro_batches = 2,
                             .rotor = {.threads = 1},
                             .holdings = {.units = units, .ranks = {held}}});
    };
    const OneRankAnswer bare = plan_of(table, kind, 80, 2);
    const OneRankAnswer result = plan_with(80 - 50 + bytes);
    EXPECT_EQ(result.program.units, units);
    EXPECT_EQ(result.plan.operations, bare.plan.operations);
    EXPECT_EQ(result.is_feasible, bare.is_feasible);
    EXPECT_EQ(result.step_s, bare.step_s);
    EXPECT_EQ(result.peak_bytes - bytes, bare.peak_bytes - 50);
    EXPECT_EQ(result.least_bytes - bytes, bare.least_bytes - 50);
    EXPECT_EQ(result.unlimited_bytes - bytes, bare.unlimited_bytes - 50);
    EXPECT_EQ(plan_with(result.least_bytes).is_feasible, true);
    EXPECT_EQ(plan_with(result.least_bytes - 1).is_feasible, false);
  }
}

TEST(Planner, TellsTheSlotsOfRotorAlone) {
  EXPECT_GT(plan_of(four_layers(), Recompute::Rotor, 110).slots, 0);
  EXPECT_EQ(plan_of(four_layers(), Recompute::None, 110).slots, 0);
}

TEST(Planner, TakesEveryTableThatTheReaderTakes) {
  // A backward may free part of what it holds before it makes the gradient of its input. This one
  // holds 2 bytes that go (the output and its gradient) and makes 10.
  CostTable table = test::make_chain(1,
                                     {{.forward = 1, .backward = 1, .size = 10, .kept = 10},
                                      {.forward = 1, .backward = 1, .size = 1, .kept = 1}});
  for (const int64_t extra : {-2, -3, -10}) {
    table.layers[1].modes[0].backward_extra_bytes = extra;
    std::optional<CostTable> read;
    try {
      read = parse_costs(format_costs(table), "costs.json");
    } catch (const ConfigError&) {
      EXPECT_LT(extra, -2);
    }
    if (read) {
      EXPECT_NO_THROW(plan_of(*read, Recompute::None, 0)) << extra;
    }
  }
}

}  // namespace penstock::plan
