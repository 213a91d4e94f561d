#include "penstock/checkpoint/dtype.h"

#include <vector>

#include <gtest/gtest.h>

namespace penstock::checkpoint {
namespace {

std::optional<int64_t> bytes_of(Dtype dtype, const std::vector<int64_t>& shape) {
  return tensor_bytes(dtype, shape);
}

TEST(Dtype, NamesReadBack) {
  for (int i = 0; i <= static_cast<int>(Dtype::U64); ++i) {
    const Dtype dtype = static_cast<Dtype>(i);
    EXPECT_EQ(find_dtype(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(find_dtype("F31"), std::nullopt);
  EXPECT_EQ(find_dtype(""), std::nullopt);
}

TEST(Dtype, SizesAreThoseOfTheFormat) {
  EXPECT_EQ(dtype_bytes(Dtype::Bool), 1);
  EXPECT_EQ(dtype_bytes(Dtype::F8_E4M3), 1);
  EXPECT_EQ(dtype_bytes(Dtype::BF16), 2);
  EXPECT_EQ(dtype_bytes(Dtype::U32), 4);
  EXPECT_EQ(dtype_bytes(Dtype::F64), 8);
}

TEST(TensorBytes, CountsElementsOfTheirSize) {
  EXPECT_EQ(bytes_of(Dtype::F32, {}), 4);
  EXPECT_EQ(bytes_of(Dtype::F32, {2, 3}), 24);
  EXPECT_EQ(bytes_of(Dtype::F32, {2, 0, 3}), 0);
}

TEST(TensorBytes, RefusesNegativeAndOverflowingShapes) {
  EXPECT_EQ(bytes_of(Dtype::U8, {INT64_MAX}), INT64_MAX);
  EXPECT_EQ(bytes_of(Dtype::U16, {INT64_MAX}), std::nullopt);
  EXPECT_EQ(bytes_of(Dtype::U8, {-1}), std::nullopt);
  EXPECT_EQ(bytes_of(Dtype::U8, {0, -1}), std::nullopt);
  EXPECT_EQ(bytes_of(Dtype::U8, {0, INT64_MAX, 2}), std::nullopt);
}

}  // namespace
}  // namespace penstock::checkpoint
