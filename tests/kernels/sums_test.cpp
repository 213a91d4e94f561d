#include "penstock/kernels/sums.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace penstock::kernels {
namespace {

float value(size_t i) {
  return std::sin(static_cast<float>(i) * 12.9898F) * 100;
}

TEST(Sums, AddEachElement) {
  for (const size_t count : {0, 1, 3, 31, 32, 33, 1000}) {
    std::vector<float> sum(count + 1, 7);
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      sum[i] = value(i);
      values[i] = value(i + 5000);
    }
    add(sum.data(), values.data(), static_cast<int64_t>(count));
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(sum[i], value(i) + value(i + 5000));
    }
    EXPECT_EQ(sum[count], 7) << "wrote past the end";
  }
}

TEST(Sums, OfBfloat16AreRoundedToNearestEven) {
  const std::vector<float> lefts = {1, 1, 1.0078125F, 256, -3, INFINITY, INFINITY};
  const std::vector<float> rights = {0.00390625F, 0.01171875F, 0.00390625F, 1, 3, 1, -INFINITY};
  std::vector<Bf16> sum;
  std::vector<Bf16> values;
  for (size_t i = 0; i < lefts.size(); ++i) {
    sum.push_back(from_float<Bf16>(lefts[i]));
    values.push_back(from_float<Bf16>(rights[i]));
  }
  add(sum.data(), values.data(), static_cast<int64_t>(sum.size()));
  EXPECT_EQ(to_float(sum[0]), 1);          // a tie, down to even
  EXPECT_EQ(to_float(sum[1]), 1.015625F);  // a tie, up to even
  EXPECT_EQ(to_float(sum[2]), 1.015625F);
  EXPECT_EQ(to_float(sum[3]), 256);  // 257 is between 256 and 258
  EXPECT_EQ(to_float(sum[4]), 0);
  EXPECT_EQ(to_float(sum[5]), INFINITY);
  EXPECT_TRUE(std::isnan(to_float(sum[6])));
}

}  // namespace
}  // namespace penstock::kernels
