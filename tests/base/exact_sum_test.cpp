#include "penstock/base/exact_sum.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace penstock {
namespace {

using Random = std::mt19937_64;

// 53 random bits, times a power of two up to the 60th: whole numbers, so that 128 bits hold their
// sum exactly.
std::vector<double> whole_numbers(Random& random, size_t count) {
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i) {
    values.push_back(
        std::ldexp(static_cast<double>(random() >> 11), static_cast<int>(random() % 61)));
  }
  return values;
}

double rounded_sum(const std::vector<double>& values) {
  __extension__ unsigned __int128 sum = 0;
  for (const double value : values) {
    sum += static_cast<decltype(sum)>(value);
  }
  return static_cast<double>(sum);
}

ExactSum sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) {
    sum.add(value);
  }
  return sum;
}

// The sums of random parts, which are added up in random order until one is left.
double sum_of_parts(Random& random, const std::vector<double>& values) {
  std::vector<ExactSum> parts(1 + random() % values.size());
  for (const double value : values) {
    parts[random() % parts.size()].add(value);
  }
  while (parts.size() > 1) {
    std::swap(parts[random() % parts.size()], parts.back());
    const ExactSum part = parts.back();
    parts.pop_back();
    parts[random() % parts.size()].add(part);
  }
  return parts[0].value();
}

TEST(ExactSum, OfSeveralRanksAddUpByTheirPlaces) {
  const std::vector<ExactSum> first{{1, 1e-20}, {2, 0}}, second{{4, 0}, {8, 1e-19}};
  std::vector<double> halves = halves_of(first);
  EXPECT_EQ(halves, (std::vector<double>{1, 1e-20, 2, 0}));
  const std::vector<double> more = halves_of(second);
  halves.insert(halves.end(), more.begin(), more.end());
  const std::vector<ExactSum> sums = add_up(halves, 2);
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[0].high, 5);
  EXPECT_EQ(sums[0].low, 1e-20);
  EXPECT_EQ(sums[1].high, 10);
  EXPECT_EQ(sums[1].low, 1e-19);
}

TEST(ExactSum, RoundsToTheSameDoubleInAnyOrderAndGrouping) {
  Random random(1);
  int plain_differ = 0;
  for (int i = 0; i < 50; ++i) {
    std::vector<double> values = whole_numbers(random, 1 + random() % 1000);
    const double expected = rounded_sum(values);
    std::set<double> plain_sums;
    for (int order = 0; order < 10; ++order) {
      std::shuffle(values.begin(), values.end(), random);
      EXPECT_EQ(sum_of(values).value(), expected);
      EXPECT_EQ(sum_of_parts(random, values), expected);
      double plain = 0;
      for (const double value : values) {
        plain += value;
      }
      plain_sums.insert(plain);
    }
    plain_differ += plain_sums.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(plain_differ, 25);
}

TEST(ExactSum, IsTheSameForTheSmallestAndLargestSizes) {
  Random random(2);
  for (int i = 0; i < 50; ++i) {
    std::vector<double> values;
    for (int left = 0; left < 500; ++left) {
      values.push_back(std::ldexp(static_cast<double>(1 + (random() >> 12)),
                                  static_cast<int>(random() % 1900) - 1000));
    }
    const double expected = sum_of(values).value();
    std::sort(values.begin(), values.end());
    EXPECT_EQ(sum_of(values).value(), expected);
    std::reverse(values.begin(), values.end());
    EXPECT_EQ(sum_of(values).value(), expected);
    EXPECT_EQ(sum_of_parts(random, values), expected);
  }
}

TEST(ExactSum, KeepsWhatADoubleLeavesOut) {
  // One and a half of the distance between two doubles, in parts that each round away.
  ExactSum sum(0x1p60);
  for (int i = 0; i < 384; ++i) {
    sum.add(1);
  }
  EXPECT_EQ(sum.value(), 0x1p60 + 512);  // the tie goes to the even
  EXPECT_EQ(sum.low, -128);
  ExactSum other(1);
  other.add(sum);
  EXPECT_EQ(other.value(), 0x1p60 + 512);
  EXPECT_EQ(other.low, -127);
}

TEST(ExactSum, OfNothingOrOneIsThat) {
  EXPECT_EQ(ExactSum().value(), 0);
  EXPECT_EQ(ExactSum(0.1).value(), 0.1);
  EXPECT_EQ(sum_of({0, 0.1, 0}).value(), 0.1);
  EXPECT_EQ(ExactSum(2, 0x1p-60).low, 0x1p-60);
}

TEST(ExactSum, OfWhatIsNotFiniteIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_FALSE(std::isfinite(sum_of({bad}).value()));
    EXPECT_FALSE(std::isfinite(sum_of({bad, 1, 2}).value()));
    EXPECT_FALSE(std::isfinite(sum_of({1, 2, bad, 3}).value()));
    ExactSum sum(1);
    sum.add(sum_of({1, bad}));
    sum.add(1);
    EXPECT_FALSE(std::isfinite(sum.value()));
  }
  const double most = std::numeric_limits<double>::max();
  EXPECT_FALSE(std::isfinite(sum_of({most, most, 1}).value()));
}

}  // namespace
}  // namespace penstock
