#include "penstock/model/tensor_cut.h"

#include <gtest/gtest.h>

#include "plan/random_chains.h"

namespace penstock::model {

TEST(TensorCut, RanksHaveWholePartsTheFirstOnesMore) {
  const TensorCut cut{.dim = 1, .parts = 5};
  EXPECT_EQ(tensor_ranges(cut, 40, 0, 2), (std::vector<TensorRange>{{0, 24}}));
  EXPECT_EQ(tensor_ranges(cut, 40, 1, 2), (std::vector<TensorRange>{{24, 40}}));
  EXPECT_EQ(tensor_count(cut, {3, 40}, 1, 2), 3 * 16);
  EXPECT_EQ(tensor_ranges(cut, 40, 6, 8), (std::vector<TensorRange>{{40, 40}}));
}

TEST(TensorCut, EachBlockIsCutByItself) {
  const TensorCut cut{.dim = 0, .parts = 4, .blocks = 3};
  EXPECT_EQ(tensor_ranges(cut, 24, 1, 2), (std::vector<TensorRange>{{4, 8}, {12, 16}, {20, 24}}));
}

TEST(TensorCut, WhatIsNotCutIsWholeOnEveryRank) {
  EXPECT_EQ(tensor_ranges({}, 7, 2, 3), (std::vector<TensorRange>{{0, 7}}));
  EXPECT_EQ(tensor_count({}, {7, 2}, 2, 3), 14);
}

TEST(TensorCut, ARankHasAllThatItsReadersNeed) {
  // Six heads of queries read two of keys: the second of three ranks needs both.
  const TensorCut keys{.dim = 0, .parts = 2, .readers = 3};
  EXPECT_EQ(tensor_ranges(keys, 16, 0, 3), (std::vector<TensorRange>{{0, 8}}));
  EXPECT_EQ(tensor_ranges(keys, 16, 1, 3), (std::vector<TensorRange>{{0, 16}}));
  EXPECT_EQ(tensor_ranges(keys, 16, 2, 3), (std::vector<TensorRange>{{8, 16}}));
}

TEST(TensorCut, EveryElementIsThereAndOnceWhereItHasOneReader) {
  test::Dice dice(5);
  for (int i = 0; i < 2000; ++i) {
    const TensorCut cut{.dim = 0,
                        .parts = dice.between(1, 9),
                        .readers = dice.chance(50) ? dice.between(1, 4) : 1,
                        .blocks = dice.between(1, 3)};
    const int64_t size = cut.parts * cut.blocks * dice.between(1, 5);
    const auto ranks = static_cast<int32_t>(dice.between(1, 9));
    std::vector<int> owners(static_cast<size_t>(size), 0);
    int64_t sum = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      for (const TensorRange& range : tensor_ranges(cut, size, rank, ranks)) {
        for (int64_t at = range.first; at < range.end; ++at) {
          ++owners[static_cast<size_t>(at)];
        }
      }
      sum += tensor_count(cut, {size, 2}, rank, ranks);
    }
    int64_t owned = 0;
    for (const int count : owners) {
      EXPECT_GE(count, 1);
      EXPECT_TRUE(cut.readers > 1 || count == 1);
      owned += count;
    }
    EXPECT_EQ(sum, 2 * owned);
  }
}

}  // namespace penstock::model
