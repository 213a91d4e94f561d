#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "penstock/kernels/cpu.h"

namespace penstock::kernels {
namespace {

uint16_t rounded(float value) {
  return from_float<Bf16>(value).bits;
}

uint16_t rounded_bits(uint32_t bits) {
  return rounded(std::bit_cast<float>(bits));
}

TEST(Bf16, KnownValues) {
  EXPECT_EQ(rounded(0.0f), 0x0000);
  EXPECT_EQ(rounded(-0.0f), 0x8000);
  EXPECT_EQ(rounded(1.0f), 0x3F80);
  EXPECT_EQ(rounded(-2.0f), 0xC000);
  EXPECT_EQ(rounded(0.1f), 0x3DCD);
  EXPECT_EQ(rounded(3.14159265f), 0x4049);
  EXPECT_EQ(to_float(Bf16{0x4049}), 3.140625f);
}

TEST(Bf16, TiesGoToEven) {
  EXPECT_EQ(rounded_bits(0x3F808000), 0x3F80);
  EXPECT_EQ(rounded_bits(0x3F818000), 0x3F82);
  EXPECT_EQ(rounded_bits(0xBF808000), 0xBF80);
  EXPECT_EQ(rounded_bits(0xBF818000), 0xBF82);
  EXPECT_EQ(rounded_bits(0x00008000), 0x0000);  // halfway between 0 and the smallest
  EXPECT_EQ(rounded_bits(0x00018000), 0x0002);
}

TEST(Bf16, BesideATieGoesToTheNearer) {
  EXPECT_EQ(rounded_bits(0x3F808001), 0x3F81);
  EXPECT_EQ(rounded_bits(0x3F817FFF), 0x3F81);
  EXPECT_EQ(rounded_bits(0x3FFFFFFF), 0x4000);  // carries into the exponent
}

TEST(Bf16, InfinityStaysAndTooLargeBecomesIt) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(rounded(infinity), 0x7F80);
  EXPECT_EQ(rounded(-infinity), 0xFF80);
  EXPECT_EQ(rounded(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(rounded_bits(0x7F7F7FFF), 0x7F7F);  // the last that rounds down
  EXPECT_EQ(to_float(Bf16{0xFF80}), -infinity);
}

TEST(Bf16, EveryNanStaysANan) {
  for (const uint32_t bits :
       {0x7F800001u, 0x7F808000u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    EXPECT_TRUE(std::isnan(to_float(Bf16{rounded_bits(bits)}))) << std::hex << bits;
  }
}

TEST(Bf16, EveryValueSurvivesTheWayToFloatAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = to_float(Bf16{static_cast<uint16_t>(bits)});
    if (!std::isnan(value)) {
      ASSERT_EQ(rounded(value), bits);
    }
  }
}

TEST(Bf16, NoOtherValueIsNearer) {
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    const uint16_t nearest = rounded(value);
    if (std::isnan(value) || (nearest & 0x7FFF) == 0x7F80 || (nearest & 0x7FFF) == 0) {
      continue;
    }
    const auto distance = [&](int step) {
      const Bf16 other{static_cast<uint16_t>(nearest + step)};
      return std::abs(static_cast<double>(to_float(other)) - static_cast<double>(value));
    };
    ASSERT_LE(distance(0), distance(1)) << value;
    ASSERT_LE(distance(0), distance(-1)) << value;
  }
}

}  // namespace
}  // namespace penstock::kernels
