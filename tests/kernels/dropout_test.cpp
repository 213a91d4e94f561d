#include "penstock/kernels/dropout.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/random_floats.h"

namespace penstock::kernels {
namespace {

constexpr PhiloxKey kKey{0x12345678, 0x9ABCDEF0};

// What element `index` of the sample is multiplied with, by the mapping as documented.
float factor(const DropoutMask& mask, uint64_t index) {
  const uint64_t within = index % 64;
  const uint64_t block = index / 64 * 16 + within % 16;
  const PhiloxBlock numbers = philox(mask.key,
                                     {static_cast<uint32_t>(block),
                                      static_cast<uint32_t>(block >> 32) ^ (mask.site << 16),
                                      static_cast<uint32_t>(mask.sample),
                                      static_cast<uint32_t>(mask.sample >> 32)});
  return numbers[within / 16] < mask.drop_below ? 0.0f : mask.scale;
}

std::vector<float> applied_to_ones(const DropoutMask& mask, int64_t first, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count), 1.0f);
  apply_dropout(mask, first, count, values.data());
  return values;
}

TEST(Dropout, EachElementFollowsTheDocumentedMapping) {
  const DropoutMask masks[] = {dropout_mask({0, 0}, 0, 0, 0.5),
                               dropout_mask(kKey, 3, 17, 0.1),
                               dropout_mask(kKey, 0xFFFF, 0xFEDCBA9876543210, 0.9)};
  const int64_t firsts[] = {
      0, 64, 6400, int64_t{1} << 33, (int64_t{1} << 34) - 64, int64_t{1} << 40};
  for (const DropoutMask& mask : masks) {
    for (const int64_t first : firsts) {
      const std::vector<float> input = random_floats(300, 1);
      std::vector<float> values = input;
      apply_dropout(mask, first, 300, values.data());
      for (size_t i = 0; i < 300; ++i) {
        ASSERT_EQ(values[i], input[i] * factor(mask, static_cast<uint64_t>(first) + i))
            << "element " << i << " from " << first;
      }
    }
  }
}

TEST(Dropout, AnyCutIntoRangesOfGroupsGivesTheSameBits) {
  constexpr int64_t count = 1000;
  const DropoutMask mask = dropout_mask(kKey, 1, 5, 0.3);
  const std::vector<float> whole = applied_to_ones(mask, 0, count);
  for (int64_t cut = 0; cut < count; cut += kDropoutGroup) {
    std::vector<float> pieces = applied_to_ones(mask, 0, cut);
    const std::vector<float> rest = applied_to_ones(mask, cut, count - cut);
    pieces.insert(pieces.end(), rest.begin(), rest.end());
    ASSERT_EQ(pieces, whole) << "cut at " << cut;
  }
}

TEST(Dropout, WritesNothingBehindItsRange) {
  const DropoutMask mask = dropout_mask(kKey, 0, 0, 0.5);
  for (int64_t count = 0; count <= 130; ++count) {
    std::vector<float> values(140, 1.0f);
    apply_dropout(mask, 0, count, values.data());
    const std::vector<float> expected = applied_to_ones(mask, 0, 140);
    for (size_t i = 0; i < 140; ++i) {
      ASSERT_EQ(values[i], static_cast<int64_t>(i) < count ? expected[i] : 1.0f)
          << count << " " << i;
    }
  }
}

TEST(Dropout, DropsTheGivenShareAndKeepsTheMean) {
  constexpr int64_t count = 1'000'000;
  for (const double share : {0.01, 0.1, 0.5, 0.9}) {
    const std::vector<float> values = applied_to_ones(dropout_mask(kKey, 2, 3, share), 0, count);
    double dropped = 0, sum = 0;
    for (const float value : values) {
      dropped += value == 0 ? 1 : 0;
      sum += static_cast<double>(value);
    }
    // Five standard deviations.
    EXPECT_NEAR(dropped / count, share, 5 * std::sqrt(share * (1 - share) / count));
    EXPECT_NEAR(sum / count, 1, 5 * std::sqrt(share / (1 - share) / count));
  }
}

TEST(Dropout, OfNothingChangesNothing) {
  const std::vector<float> input = random_floats(200, 2);
  std::vector<float> values = input;
  apply_dropout(dropout_mask(kKey, 0, 0, 0), 0, 200, values.data());
  EXPECT_EQ(values, input);
}

TEST(Dropout, ThresholdAndScaleComeFromTheShare) {
  const DropoutMask quarter = dropout_mask(kKey, 7, 9, 0.25);
  EXPECT_EQ(quarter.drop_below, 0x40000000u);
  EXPECT_EQ(quarter.scale, 4.0f / 3);
  EXPECT_EQ(quarter.site, 7u);
  EXPECT_EQ(quarter.sample, 9u);
  const DropoutMask nearly_all = dropout_mask(kKey, 0, 0, std::nextafter(1.0, 0.0));
  EXPECT_EQ(nearly_all.drop_below, 0xFFFFFFFFu);
  EXPECT_TRUE(std::isfinite(nearly_all.scale));
}

TEST(Dropout, MasksOfOtherKeysSitesAndSamplesAreIndependent) {
  constexpr int64_t count = 65536;
  const auto mask = [](PhiloxKey key, uint32_t site, uint64_t sample) {
    return applied_to_ones(dropout_mask(key, site, sample, 0.5), 0, count);
  };
  const std::vector<float> base = mask(kKey, 1, 10);
  EXPECT_EQ(mask(kKey, 1, 10), base);
  const std::vector<float> others[] = {mask({kKey.low + 1, kKey.high}, 1, 10),
                                       mask({kKey.low, kKey.high + 1}, 1, 10),
                                       mask(kKey, 2, 10),
                                       mask(kKey, 0, 10),
                                       mask(kKey, 1, 11),
                                       mask(kKey, 1, 10 + (uint64_t{1} << 32))};
  for (const std::vector<float>& other : others) {
    int64_t equal = 0;
    for (size_t i = 0; i < base.size(); ++i) {
      equal += base[i] == other[i] ? 1 : 0;
    }
    // Half of them, to five standard deviations.
    EXPECT_NEAR(static_cast<double>(equal), count / 2.0, 5 * std::sqrt(count) / 2);
  }
}

TEST(Dropout, Bf16TakesTheSameMaskAndRoundsOnce) {
  const std::vector<float> input = random_floats(300, 3);
  const DropoutMask mask = dropout_mask(kKey, 4, 6, 0.3);
  std::vector<Bf16> values;
  for (const float value : input) {
    values.push_back(from_float<Bf16>(value));
  }
  const std::vector<Bf16> before = values;
  apply_dropout(mask, 128, 300, values.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const float expected = to_float(before[i]) * factor(mask, 128 + i);
    ASSERT_EQ(values[i].bits, from_float<Bf16>(expected).bits) << i;
  }
}

}  // namespace
}  // namespace penstock::kernels
