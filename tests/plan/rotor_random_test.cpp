// The solver's promises on many random chains, checked on the program that its answer becomes.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/plan/lower.h"
#include "penstock/plan/rotor.h"
#include "penstock/program/verify.h"

#include "plan/random_chains.h"
#include "plan/schedule_checks.h"

namespace penstock::plan {

namespace {

using test::Dice;

constexpr int kChains = 20'000;

// Mostly short chains, some long; small numbers, and byte counts as a device has them: up to
// gigabytes and odd, so that slots are rounded.
struct Case {
  CostTable table;
  bool is_small = true;  // whole numbers for which the solver's slots are exact
};

Case random_case(Dice& dice) {
  const int64_t layers = dice.chance(70) ? dice.between(1, 12) : dice.between(13, 40);
  if (dice.chance(40)) {
    return {test::small_chain(dice, layers), true};
  }
  const bool is_small = dice.chance(40);
  const int64_t most_size = is_small ? dice.between(1, 9) : dice.between(1 << 20, int64_t{3} << 30);
  return {test::rich_chain(dice, layers, {.most_size = most_size}), is_small};
}

RotorOptions options_for(const Case& one, Dice& dice) {
  const int64_t slots = one.is_small && one.table.layers.size() <= 16 ? 0 : dice.between(20, 200);
  return {.slots = slots, .threads = 1};
}

int64_t random_limit(const CostTable& table, int64_t least, Dice& dice) {
  // Tight limits matter most.
  const int64_t most = std::max(least, test::keep_all_bytes(table));
  return dice.chance(25) ? least : dice.between(least, dice.chance(50) ? most : (least + most) / 2);
}

// The limit of a whole step whose running micro-batch may hold `limit`.
int64_t step_limit(const CostTable& table, int64_t limit, int32_t micro_batches) {
  int64_t bytes = limit - table.input_bytes();
  for (const program::Held& one : table.held) {
    bytes += one.bytes;
  }
  const int64_t waiting = table.given_bytes() - table.input_bytes();  // of each other micro-batch
  return bytes + micro_batches * (table.input_bytes() + table.target_bytes) +
         table.carried_bytes() + (micro_batches - 1) * waiting;
}

void expect_fits(const CostTable& table,
                 const RotorAnswer& answer,
                 int64_t limit,
                 int32_t micro_batches) {
  ASSERT_TRUE(answer.is_feasible);
  test::expect_contract(table, answer.operations);
  EXPECT_EQ(answer.seconds, seconds_of(table, answer.operations));
  const int64_t allowed = step_limit(table, limit, micro_batches);
  const program::Program program = lower(table, answer.operations, micro_batches, allowed);
  const program::Verdict verdict = program::verify(program);
  ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
  EXPECT_LE(verdict.peaks[0].bytes, allowed);
  EXPECT_EQ(verdict.peaks[0].bytes, program::replay_peak(program.ranks[0]).bytes);
}

}  // namespace

TEST(RotorRandom, EveryAnswerIsAScheduleWithinItsLimit) {
  Dice dice(40);
  for (int i = 0; i < kChains && !HasFailure(); ++i) {
    const Case one = random_case(dice);
    SCOPED_TRACE(cat("chain ", i));
    const RotorOptions options = options_for(one, dice);
    const int64_t least = solve_rotor(one.table, 0, {.slots = 1, .threads = 1}).least_bytes;
    const int64_t limit = random_limit(one.table, least, dice);
    const RotorAnswer answer = solve_rotor(one.table, limit, options);
    EXPECT_EQ(answer.least_bytes, least);
    expect_fits(one.table, answer, limit, static_cast<int32_t>(dice.between(1, 3)));
  }
}

TEST(RotorRandom, TheLeastLimitIsFeasibleWithAnySlotsAndOneByteLessIsNot) {
  Dice dice(41);
  for (int i = 0; i < 6000 && !HasFailure(); ++i) {
    CostTable table = random_case(dice).table;
    // The chain alone, so that the program's peak is the solver's own measure.
    table.held.clear();
    table.carried.clear();
    table.target_bytes = 0;
    SCOPED_TRACE(cat("chain ", i));
    const RotorOptions options{.slots = dice.between(1, 30), .threads = 1};
    const int64_t least = solve_rotor(table, 1, options).least_bytes;
    const RotorAnswer at_least = solve_rotor(table, least, options);
    expect_fits(table, at_least, least, 1);
    const RotorAnswer below = solve_rotor(table, least - 1, options);
    EXPECT_FALSE(below.is_feasible);
    EXPECT_EQ(below.least_bytes, least);
    // The answer is then the schedule for the least limit. It reaches that limit, so that no lower
    // one would do for it.
    EXPECT_EQ(test::peak_of(table, at_least.operations), least);
    EXPECT_EQ(test::peak_of(table, below.operations), least);
  }
}

TEST(RotorRandom, FewSlotsAreNeverFasterThanExactOnes) {
  Dice dice(42);
  int slower = 0;
  for (int i = 0; i < 3000 && !HasFailure(); ++i) {
    const int64_t layers = dice.between(2, 14);
    const CostTable table = dice.chance(50) ? test::small_chain(dice, layers)
                                            : test::rich_chain(dice, layers, {.has_held = false});
    SCOPED_TRACE(cat("chain ", i));
    const int64_t least = solve_rotor(table, 0, {.slots = 1, .threads = 1}).least_bytes;
    const int64_t limit = random_limit(table, least, dice);
    const RotorAnswer exact = solve_rotor(table, limit, {.threads = 1});
    const RotorAnswer rounded = solve_rotor(table, limit, {.slots = 20, .threads = 1});
    EXPECT_GE(rounded.seconds, exact.seconds);
    slower += rounded.seconds > exact.seconds ? 1 : 0;
  }
  std::printf("20 slots: %d of 3000 slower than exact\n", slower);
  RecordProperty("slower_with_20_slots", slower);
}

TEST(RotorRandom, MoreMemoryIsNeverSlower) {
  Dice dice(43);
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    const int64_t layers = dice.between(2, 9);
    const CostTable table = dice.chance(50) ? test::small_chain(dice, layers)
                                            : test::rich_chain(dice, layers, {.has_held = false});
    SCOPED_TRACE(cat("chain ", i));
    const int64_t least = solve_rotor(table, 0, {.threads = 1}).least_bytes;
    double before = solve_rotor(table, least, {.threads = 1}).seconds;
    const int64_t most = std::max(least, test::keep_all_bytes(table));
    for (int64_t limit = least + 1; limit <= most; ++limit) {
      const double seconds = solve_rotor(table, limit, {.threads = 1}).seconds;
      EXPECT_LE(seconds, before) << "limit " << limit;
      before = seconds;
    }
    // With room for everything there is no recomputation.
    EXPECT_LE(before, seconds_of(table, keep_everything(table)));
  }
}

// Where sizes are no small whole numbers, memory is divided into levels, and sizes are rounded up.
TEST(RotorRandom, MoreMemoryIsNeverSlowerWhereLevelsRound) {
  Dice dice(45);
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    const CostTable table = test::rich_chain(
        dice, dice.between(2, 24), {.most_size = 1'000'003, .has_held = false, .most_carried = 0});
    const RotorOptions options{.slots = dice.chance(50) ? 0 : dice.between(10, 300), .threads = 1};
    SCOPED_TRACE(cat("chain ", i, ", slots ", options.slots));
    const int64_t least = solve_rotor(table, 0, {.slots = 1, .threads = 1}).least_bytes;
    const int64_t most = std::max(least, test::keep_all_bytes(table));
    std::vector<int64_t> limits{least, least + 1, most, 2 * most};
    for (int k = 0; k < 20; ++k) {
      limits.push_back(dice.between(least, most));
    }
    std::sort(limits.begin(), limits.end());
    double before = std::numeric_limits<double>::infinity();
    for (const int64_t limit : limits) {
      const RotorAnswer answer = solve_rotor(table, limit, options);
      EXPECT_LE(answer.seconds, before) << "limit " << limit;
      EXPECT_LE(test::peak_of(table, answer.operations), limit);
      before = answer.seconds;
    }
    EXPECT_LE(solve_rotor(table, most, options).seconds, seconds_of(table, keep_everything(table)));
  }
}

TEST(RotorRandom, ThreadsDoNotChangeTheAnswer) {
  Dice dice(44);
  for (int i = 0; i < 20; ++i) {
    // Long enough that the solver shares the work out.
    const CostTable table = test::rich_chain(dice, 40, {.most_size = 1'000'003});
    const int64_t least = solve_rotor(table, 0, {.slots = 1, .threads = 1}).least_bytes;
    const int64_t limit = random_limit(table, least, dice);
    const RotorAnswer one = solve_rotor(table, limit, {.slots = 400, .threads = 1});
    const RotorAnswer four = solve_rotor(table, limit, {.slots = 400, .threads = 4});
    EXPECT_EQ(one.operations, four.operations);
    EXPECT_EQ(one.seconds, four.seconds);
  }
}

}  // namespace penstock::plan
