#include "penstock/kernels/rotary.h"

#include <cmath>

#include <gtest/gtest.h>

#include "kernels/random_floats.h"

namespace penstock::kernels {
namespace {

// Llama 3.2's: the fast end is left alone, the slow end divided by 32, and the rest lies between.
TEST(Rotary, StretchesSlowRotationsAlone) {
  const std::vector<double> plain = rotary_frequencies(64, 500000, {});
  const std::vector<double> stretched =
      rotary_frequencies(64, 500000, {.factor = 32, .original_context = 8192});
  ASSERT_EQ(plain.size(), 32u);
  ASSERT_EQ(stretched.size(), 32u);
  EXPECT_EQ(plain[0], 1);
  EXPECT_NEAR(plain[16], 1 / std::sqrt(500000.0), 1e-12);
  int kept = 0, whole = 0, between = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double turns = 8192 * plain[i] / (2 * M_PI);
    const double ratio = plain[i] / stretched[i];
    if (turns > 4) {
      EXPECT_EQ(ratio, 1) << i;
      ++kept;
    } else if (turns < 1) {
      EXPECT_NEAR(ratio, 32, 1e-12) << i;
      ++whole;
    } else {
      EXPECT_GT(ratio, 1) << i;
      EXPECT_LT(ratio, 32) << i;
      ++between;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(whole, 0);
  EXPECT_GT(between, 0);
}

TEST(Rotary, TurnsPairsByTheirAngleAndBack) {
  constexpr int64_t kContext = 7, kHeads = 3, kWidth = 10, kRows = 2 * kContext;
  const std::vector<double> frequencies = rotary_frequencies(kWidth, 100, {});
  const RotaryTable table(kContext, frequencies);
  const std::vector<float> before = random_floats(kRows * kHeads * kWidth, 1);
  std::vector<float> rows = before;
  Rotation<float> work{rows.data(), kHeads, kContext, &table};
  rotate(work, 0, 3);
  rotate(work, 3, kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t i = 0; i < kWidth / 2; ++i) {
        const size_t one = static_cast<size_t>((row * kHeads + head) * kWidth + i);
        const size_t other = one + kWidth / 2;
        const double angle =
            static_cast<double>(row % kContext) * frequencies[static_cast<size_t>(i)];
        EXPECT_NEAR(
            rows[one], before[one] * std::cos(angle) - before[other] * std::sin(angle), 1e-6);
        EXPECT_NEAR(
            rows[other], before[other] * std::cos(angle) + before[one] * std::sin(angle), 1e-6);
      }
    }
  }
  work.is_backward = true;
  rotate(work, 0, kRows);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_NEAR(rows[i], before[i], 1e-6);
  }
}

TEST(Rotary, TurnsBfloat16InFloat32) {
  const RotaryTable table(4, rotary_frequencies(8, 10000, {}));
  const std::vector<float> values = random_floats(4 * 8, 2);
  std::vector<Bf16> narrow;
  std::vector<float> wide;
  for (const float value : values) {
    narrow.push_back(from_float<Bf16>(value));
    wide.push_back(to_float(narrow.back()));
  }
  rotate(Rotation<Bf16>{narrow.data(), 1, 4, &table}, 0, 4);
  rotate(Rotation<float>{wide.data(), 1, 4, &table}, 0, 4);
  for (size_t i = 0; i < wide.size(); ++i) {
    EXPECT_EQ(narrow[i].bits, from_float<Bf16>(wide[i]).bits);
  }
}

}  // namespace
}  // namespace penstock::kernels
