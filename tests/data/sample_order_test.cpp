#include "penstock/data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"

namespace penstock::data {
namespace {

std::vector<int64_t> epoch_of(int64_t samples, uint64_t seed, int64_t epoch) {
  const SampleOrder order(samples, seed);
  std::vector<int64_t> drawn;
  for (int64_t position = 0; position < samples; ++position) {
    drawn.push_back(order.at(epoch * samples + position));
  }
  return drawn;
}

// Pearson's statistic against `cells` equally likely outcomes; its mean is cells - 1 and its
// variance 2 * (cells - 1) when they are.
double chi_square(const std::vector<int64_t>& counts) {
  const double total =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const double expected = total / static_cast<double>(counts.size());
  double sum = 0;
  for (const int64_t count : counts) {
    const double off = static_cast<double>(count) - expected;
    sum += off * off / expected;
  }
  return sum;
}

TEST(SampleOrder, EveryEpochIsAPermutation) {
  std::vector<int64_t> sizes(70);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(),
               {97, 127, 128, 129, 255, 256, 257, 1000, 1024, 1025, 4096, 4099, 10007});
  for (const int64_t samples : sizes) {
    std::vector<int64_t> expected(static_cast<size_t>(samples));
    std::iota(expected.begin(), expected.end(), 0);
    for (const int64_t epoch : {0, 1, 2, 1000}) {
      std::vector<int64_t> drawn = epoch_of(samples, 42, epoch);
      std::sort(drawn.begin(), drawn.end());
      EXPECT_EQ(drawn, expected) << samples << " samples, epoch " << epoch;
    }
  }
}

TEST(SampleOrder, IsAPureFunctionOfSeedAndIndex) {
  const std::vector<int64_t> forwards = epoch_of(1000, 7, 3);
  const SampleOrder order(1000, 7);
  for (int64_t position = 999; position >= 0; --position) {
    EXPECT_EQ(order.at(3000 + position), forwards[static_cast<size_t>(position)]);
  }
}

TEST(SampleOrder, DoesNotChangeBetweenBuilds) {
  // A resumed run, perhaps of a later build, has to draw what the interrupted one would have.
  EXPECT_EQ(epoch_of(8, 1, 0), (std::vector<int64_t>{3, 5, 7, 6, 4, 2, 1, 0}));
  EXPECT_EQ(SampleOrder(1000003, 42).at(5000000), 352317);
}

TEST(SampleOrder, EpochsAndSeedsDiffer) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (int64_t epoch = 0; epoch < 20; ++epoch) {
      orders.insert(epoch_of(100, seed, epoch));
    }
  }
  EXPECT_EQ(orders.size(), 400);
}

TEST(SampleOrder, LateEpochsOfASmallDatasetDiffer) {
  // Past 2^32 epochs the upper half of the epoch has to count.
  EXPECT_NE(epoch_of(100, 3, 5), epoch_of(100, 3, 5 + (int64_t{1} << 32)));
}

TEST(SampleOrder, EverySampleIsEquallyLikelyAtEveryPosition) {
  for (const int64_t samples : {2, 3, 4, 5, 7, 16, 33}) {
    const size_t size = static_cast<size_t>(samples);
    std::vector<std::vector<int64_t>> by_seed(size, std::vector<int64_t>(size));
    std::vector<std::vector<int64_t>> by_epoch = by_seed;
    for (int64_t trial = 0; trial < 4000; ++trial) {
      const SampleOrder seeded(samples, static_cast<uint64_t>(trial)), one(samples, 99);
      for (int64_t position = 0; position < samples; ++position) {
        const size_t at = static_cast<size_t>(position);
        ++by_seed[at][static_cast<size_t>(seeded.at(position))];
        ++by_epoch[at][static_cast<size_t>(one.at(trial * samples + position))];
      }
    }
    // Five standard deviations, and room for the skew at few cells.
    const double freedom = static_cast<double>(samples - 1);
    const double limit = freedom + 5 * std::sqrt(2 * freedom) + 10;
    for (size_t position = 0; position < size; ++position) {
      EXPECT_LT(chi_square(by_seed[position]), limit) << samples << " at " << position;
      EXPECT_LT(chi_square(by_epoch[position]), limit) << samples << " at " << position;
    }
  }
}

TEST(SampleOrder, EveryPermutationOfFourIsEquallyLikely) {
  std::map<std::vector<int64_t>, int64_t> seen;
  for (uint64_t seed = 0; seed < 24000; ++seed) {
    ++seen[epoch_of(4, seed, 0)];
  }
  ASSERT_EQ(seen.size(), 24);
  std::vector<int64_t> counts;
  for (const auto& [order, count] : seen) {
    counts.push_back(count);
  }
  EXPECT_LT(chi_square(counts), 23 + 5 * std::sqrt(2 * 23.0));
}

TEST(SampleOrder, NeighboursAreSpreadOverALargeDataset) {
  // Neighbouring indices land in the same sixteenth of the dataset one time in sixteen.
  const int64_t samples = 1000003;
  const SampleOrder order(samples, 11);
  int64_t close = 0;
  for (int64_t index = 0; index < 16000; ++index) {
    close += order.at(index) * 16 / samples == order.at(index + 1) * 16 / samples ? 1 : 0;
  }
  EXPECT_NEAR(close, 1000, 5 * std::sqrt(1000.0));
}

TEST(SampleOrder, HugeDatasetsStayInsideWithoutRepeats) {
  for (const int64_t samples :
       {(int64_t{1} << 32) + 1, int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    const SampleOrder order(samples, 5);
    std::set<int64_t> drawn;
    for (int64_t index = 0; index < 1000; ++index) {
      const int64_t sample = order.at(index);
      ASSERT_GE(sample, 0);
      ASSERT_LT(sample, samples);
      drawn.insert(sample);
    }
    EXPECT_EQ(drawn.size(), 1000);
  }
}

TEST(SampleOrder, NoSamplesOrANegativeIndexIsOurBug) {
  EXPECT_THROW(SampleOrder(0, 1), InternalError);
  EXPECT_THROW(SampleOrder(-5, 1), InternalError);
  EXPECT_THROW(SampleOrder(5, 1).at(-1), InternalError);
}

}  // namespace
}  // namespace penstock::data
