// The solver against its published values.
#include <gtest/gtest.h>

#include "penstock/plan/one_rank.h"

#include "plan/small_chains.h"

namespace penstock::plan {

using test::homogeneous;

TEST(Rotor, GivesThePublishedValuesOfTheHomogeneousChain) {
  const CostTable chain = homogeneous(10, {.forward = 1, .backward = 2, .size = 1, .kept = 3});
  EXPECT_FALSE(solve_rotor(chain, 6, {}).is_feasible);
  struct Row {
    int64_t limit;
    size_t operations;
    double seconds;
  };
  for (const Row& row : {Row{7, 66, 75}, Row{8, 41, 50}, Row{9, 36, 45}, Row{15, 28, 37}}) {
    const RotorAnswer answer = solve_rotor(chain, row.limit, {});
    EXPECT_TRUE(answer.is_feasible);
    EXPECT_EQ(answer.operations.size(), row.operations) << row.limit;
    EXPECT_EQ(answer.seconds, row.seconds) << row.limit;
    EXPECT_EQ(answer.least_bytes, 7);
  }
}

}  // namespace penstock::plan
