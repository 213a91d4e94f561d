#include "penstock/kernels/embedding.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "kernels/random_floats.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kVocabulary = 11, kContext = 5, kRows = 15, kWidth = 37;

template <typename T>
std::vector<T> random_values(int64_t count, uint32_t seed) {
  std::vector<T> values;
  for (const float value : random_floats(static_cast<size_t>(count), seed)) {
    values.push_back(from_float<T>(value));
  }
  return values;
}

template <typename T>
std::vector<float> as_floats(const std::vector<T>& values) {
  std::vector<float> floats;
  for (const T value : values) {
    floats.push_back(to_float(value));
  }
  return floats;
}

template <typename T>
class Embedding : public testing::Test {
 protected:
  // Tokens repeat, within a sequence and over sequences; the first and the last are among them.
  std::vector<int64_t> tokens_ = {0, 10, 3, 3, 3, 7, 0, 0, 10, 1, 5, 3, 9, 10, 10};
  std::vector<T> table_ = random_values<T>(kVocabulary * kWidth, 1);
  std::vector<T> positions_ = random_values<T>(kContext * kWidth, 2);
  std::vector<T> gradient_ = random_values<T>(kRows * kWidth, 3);

  EmbeddingForward<T> forward(std::vector<T>& out) const {
    return {table_.data(), positions_.data(), tokens_.data(), out.data(), kContext, kWidth};
  }

  struct Gradients {
    // Not zero: backward adds to what is there.
    std::vector<float> table = random_floats(kVocabulary * kWidth, 4);
    std::vector<float> positions = random_floats(kContext * kWidth, 5);
  };

  EmbeddingBackward<T> backward(Gradients& gradients) const {
    return {gradient_.data(),
            tokens_.data(),
            gradients.table.data(),
            gradients.positions.data(),
            kRows,
            kContext,
            kWidth};
  }
};

using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(Embedding, Types);

TYPED_TEST(Embedding, RowsAreTokenPlusPosition) {
  std::vector<TypeParam> out(kRows * kWidth);
  embed(this->forward(out), 0, kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kWidth; ++i) {
      const int64_t token = this->tokens_[static_cast<size_t>(row)];
      const float sum =
          to_float(this->table_[static_cast<size_t>(token * kWidth + i)]) +
          to_float(this->positions_[static_cast<size_t>(row % kContext * kWidth + i)]);
      ASSERT_EQ(to_float(out[static_cast<size_t>(row * kWidth + i)]),
                to_float(from_float<TypeParam>(sum)))
          << row << " " << i;
    }
  }
}

TYPED_TEST(Embedding, ARangeOfRowsWritesThoseRowsAlone) {
  std::vector<TypeParam> whole(kRows * kWidth);
  embed(this->forward(whole), 0, kRows);
  std::vector<TypeParam> part(kRows * kWidth, from_float<TypeParam>(-99));
  embed(this->forward(part), 4, 9);
  const std::vector<float> all = as_floats(whole), some = as_floats(part);
  for (size_t i = 0; i < some.size(); ++i) {
    const bool is_inside = i >= 4 * kWidth && i < 9 * kWidth;
    ASSERT_EQ(some[i], is_inside ? all[i] : -99.0f) << i;
  }
}

TYPED_TEST(Embedding, BackwardAddsEachRowToItsTokenAndItsPosition) {
  typename TestFixture::Gradients actual, before;
  std::vector<double> table(before.table.begin(), before.table.end());
  std::vector<double> positions(before.positions.begin(), before.positions.end());
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t i = 0; i < kWidth; ++i) {
      const double value = static_cast<double>(to_float(this->gradient_[row * kWidth + i]));
      table[static_cast<size_t>(this->tokens_[row]) * kWidth + i] += value;
      positions[row % kContext * kWidth + i] += value;
    }
  }
  embed_backward(this->backward(actual), 0, kWidth);
  for (size_t i = 0; i < table.size(); ++i) {
    ASSERT_NEAR(actual.table[i], table[i], 3e-6) << i;
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    ASSERT_NEAR(actual.positions[i], positions[i], 3e-6) << i;
  }
}

TYPED_TEST(Embedding, SplittingTheColumnsGivesTheSameBits) {
  typename TestFixture::Gradients whole;
  embed_backward(this->backward(whole), 0, kWidth);
  for (int64_t piece = 1; piece <= kWidth; ++piece) {
    typename TestFixture::Gradients split;
    for (int64_t first = 0; first < kWidth; first += piece) {
      embed_backward(this->backward(split), first, std::min(first + piece, kWidth));
    }
    ASSERT_EQ(split.table, whole.table) << piece;
    ASSERT_EQ(split.positions, whole.positions) << piece;
  }
}

}  // namespace
}  // namespace penstock::kernels
