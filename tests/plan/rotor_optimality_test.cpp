// The solver against two things that share nothing with it: an exhaustive search over all schedules
// of short chains, and its own recurrence evaluated the slow way.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/plan/rotor.h"

#include "plan/exhaustive_search.h"
#include "plan/random_chains.h"
#include "plan/recurrence.h"
#include "plan/schedule_checks.h"

namespace penstock::plan {

namespace {

using test::Dice;
using test::ExhaustiveSearch;
using test::Recurrence;

constexpr RotorOptions kOneThread{.threads = 1};

// What the search finds beyond the solver: schedules that drop a stored value and make it again.
struct Comparison {
  int chains = 0;
  int slower = 0;  // chains whose solution takes longer than the search's
  double worst_ratio = 1;
  int more_bytes = 0;  // chains whose least limit is above the search's
  int64_t worst_bytes = 0;

  void add_time(double solver, double search) {
    ++chains;
    slower += solver > search ? 1 : 0;
    worst_ratio = std::max(worst_ratio, solver / search);
  }
  void add_least(int64_t solver, int64_t search) {
    more_bytes += solver > search ? 1 : 0;
    worst_bytes = std::max(worst_bytes, solver - search);
  }
  void report() const {
    const std::string text = cat(slower,
                                 " of ",
                                 chains,
                                 " chains slower than the search, at worst ",
                                 worst_ratio,
                                 " times; ",
                                 more_bytes,
                                 " with a larger least limit, at worst by ",
                                 worst_bytes);
    std::printf("%s\n", text.c_str());
    testing::Test::RecordProperty("slower_chains", slower);
    testing::Test::RecordProperty("worst_ratio", cat(worst_ratio));
    testing::Test::RecordProperty("larger_least_limits", more_bytes);
    testing::Test::RecordProperty("worst_extra_bytes", static_cast<int>(worst_bytes));
  }
};

// The least limit is exact: a schedule reaches it, and the recurrence has none below.
void expect_exact_least(const CostTable& table, int64_t least, Recurrence& recurrence) {
  const RotorAnswer at_least = solve_rotor(table, least, kOneThread);
  EXPECT_TRUE(at_least.is_feasible);
  EXPECT_EQ(test::peak_of(table, at_least.operations), least);
  EXPECT_EQ(at_least.seconds, recurrence.seconds(least));
  const RotorAnswer below = solve_rotor(table, least - 1, kOneThread);
  EXPECT_FALSE(below.is_feasible);
  EXPECT_EQ(below.least_bytes, least);
  EXPECT_EQ(recurrence.seconds(least - 1), Recurrence::kInfinity);
}

// One chain at one limit; the checks that hold for every chain.
void compare(const CostTable& table, Dice& dice, Recurrence::SweepGuard guard, Comparison& sum) {
  Recurrence recurrence(table, guard);
  const int64_t least = solve_rotor(table, 0, kOneThread).least_bytes;
  expect_exact_least(table, least, recurrence);
  const int64_t limit = dice.between(least, std::max(least, test::keep_all_bytes(table)));
  const RotorAnswer answer = solve_rotor(table, limit, kOneThread);
  ASSERT_TRUE(answer.is_feasible);
  EXPECT_LE(test::peak_of(table, answer.operations), limit);
  EXPECT_EQ(answer.seconds, recurrence.seconds(limit)) << "limit " << limit;

  const ExhaustiveSearch search(table);
  const std::optional<int64_t> fastest = search.fastest(limit);
  ASSERT_TRUE(fastest.has_value());
  EXPECT_GE(answer.seconds, static_cast<double>(*fastest)) << "faster than any valid schedule";
  sum.add_time(answer.seconds, static_cast<double>(*fastest));
  const int64_t search_least = search.least_bytes();
  EXPECT_GE(least, search_least) << "less than any valid schedule";
  sum.add_least(least, search_least);
  if (least == search_least) {
    EXPECT_FALSE(search.fastest(least - 1).has_value());
  }
}

}  // namespace

TEST(RotorOptimality, TheSearchBeatsTheRecurrenceOnTheKnownCounterExample) {
  // The optimum drops x_1 and makes it again: no schedule of the recurrence does that.
  const CostTable chain = test::make_chain(3,
                                           {{.forward = 2, .backward = 4, .size = 1, .kept = 2},
                                            {.forward = 4, .backward = 6, .size = 3, .kept = 3},
                                            {.forward = 6, .backward = 9, .size = 1, .kept = 6},
                                            {.forward = 2, .backward = 9, .size = 2, .kept = 7}});
  EXPECT_EQ(solve_rotor(chain, 16, {}).seconds, 60);
  EXPECT_EQ(ExhaustiveSearch(chain).fastest(16), 58);
}

TEST(RotorOptimality, NeverBeatsAndSeldomMissesTheOptimumOfShortChains) {
  Dice dice(20190901);
  Comparison sum;
  for (int i = 0; i < 3000 && !HasFailure(); ++i) {
    const CostTable table = test::small_chain(dice, dice.between(1, 6));
    SCOPED_TRACE(cat("chain ", i, ": ", format_costs(table)));
    compare(table, dice, Recurrence::SweepGuard::WholeSegment, sum);
  }
  sum.report();
  // Measured when this was written; a change that loses more has lost something.
  EXPECT_EQ(sum.chains, 3000);
  EXPECT_LE(sum.slower, 19);
  EXPECT_LE(sum.worst_ratio, 1.21);
  EXPECT_EQ(sum.more_bytes, 0);
}

TEST(RotorOptimality, HoldsWithSeveralSaveModesAndOutputsLeftOut) {
  Dice dice(20210701);
  Comparison sum;
  for (int i = 0; i < 1500 && !HasFailure(); ++i) {
    const CostTable table =
        test::rich_chain(dice,
                         dice.between(1, 4),
                         {.most_size = 6, .most_modes = 2, .has_held = false, .most_carried = 0});
    SCOPED_TRACE(cat("chain ", i, ": ", format_costs(table)));
    compare(table, dice, Recurrence::SweepGuard::UntilStop, sum);
  }
  sum.report();
  EXPECT_EQ(sum.chains, 1500);
  EXPECT_LE(sum.slower, 4);
  EXPECT_LE(sum.worst_ratio, 1.16);
  EXPECT_EQ(sum.more_bytes, 0);
}

TEST(RotorOptimality, RunsALayerTwiceWhereThatIsFasterThanKeepingIt) {
  // A forward that keeps may be so slow that a plain one and a cheap second run beat it. More
  // memory than keeping takes must then be put to use: the plain forward's extra needs it here.
  CostTable chain = test::make_chain(1, {{.forward = 1, .backward = 1, .size = 1, .kept = 2}});
  chain.layers[0].forward_extra_bytes = 9;
  chain.layers[0].modes[0].forward_s = 5;
  chain.layers[0].modes[0].needs_output = false;
  chain.layers[0].modes[0].recompute_s = 1;
  EXPECT_EQ(ExhaustiveSearch(chain).fastest(11), 3);
  EXPECT_EQ(solve_rotor(chain, 10, {}).seconds, 6);
  EXPECT_EQ(solve_rotor(chain, 11, {}).seconds, 3);
}

TEST(RotorOptimality, EqualsTheLiteralRecurrenceOnLongerChains) {
  Dice dice(8014);
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    const CostTable table = test::small_chain(dice, dice.between(8, 14));
    SCOPED_TRACE(cat("chain ", i, ": ", format_costs(table)));
    Recurrence recurrence(table);
    const int64_t least = solve_rotor(table, 0, kOneThread).least_bytes;
    expect_exact_least(table, least, recurrence);
    const int64_t limit = dice.between(least, std::max(least, test::keep_all_bytes(table)));
    EXPECT_EQ(solve_rotor(table, limit, kOneThread).seconds, recurrence.seconds(limit)) << limit;
  }
}

}  // namespace penstock::plan
