#include "penstock/base/checksum.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace penstock {
namespace {

// Bit by bit, as the definition says.
uint32_t by_definition(const std::vector<uint8_t>& bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78 : 0);
    }
  }
  return ~crc;
}

std::vector<uint8_t> random_bytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(random());
  }
  return bytes;
}

TEST(Checksum, GivesThePublishedValues) {
  EXPECT_EQ(crc32c("123456789", 9), 0xE3069283);
  // RFC 3720, appendix B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8A9136AA);
  EXPECT_EQ(crc32c(std::string(32, '\xFF').data(), 32), 0x62A8AB43);
  std::vector<uint8_t> rising(32), falling(32);
  for (uint8_t i = 0; i < 32; ++i) {
    rising[i] = i;
    falling[i] = static_cast<uint8_t>(31 - i);
  }
  EXPECT_EQ(crc32c(rising.data(), 32), 0x46DD794E);
  EXPECT_EQ(crc32c(falling.data(), 32), 0x113FDB5C);
}

TEST(Checksum, OfNothingIsWhatWasBefore) {
  EXPECT_EQ(crc32c(nullptr, 0), 0u);
  EXPECT_EQ(crc32c(nullptr, 0, 0x12345678), 0x12345678u);
}

TEST(Checksum, MatchesTheDefinitionAtEveryLengthAndAlignment) {
  for (size_t length = 0; length < 70; ++length) {
    const std::vector<uint8_t> bytes = random_bytes(length, static_cast<uint32_t>(length));
    const uint32_t expected = by_definition(bytes);
    for (size_t offset = 0; offset < 8; ++offset) {
      std::vector<uint8_t> shifted(offset);
      shifted.insert(shifted.end(), bytes.begin(), bytes.end());
      EXPECT_EQ(crc32c(shifted.data() + offset, length), expected) << length << " at " << offset;
    }
  }
}

TEST(Checksum, PieceByPieceIsTheSumOfTheWhole) {
  const std::vector<uint8_t> bytes = random_bytes(10'000, 7);
  const uint32_t whole = crc32c(bytes.data(), bytes.size());
  EXPECT_EQ(whole, by_definition(bytes));
  std::mt19937 random(8);
  for (int round = 0; round < 200; ++round) {
    const size_t longest = round % 2 == 0 ? 20 : 3000;
    uint32_t sum = 0;
    for (size_t done = 0; done < bytes.size();) {
      const size_t piece = std::min<size_t>(random() % longest, bytes.size() - done);
      sum = crc32c(bytes.data() + done, piece, sum);
      done += piece;
    }
    ASSERT_EQ(sum, whole);
  }
}

TEST(Checksum, CombinedIsTheSumOfTheConcatenation) {
  const std::vector<uint8_t> bytes = random_bytes(300, 10);
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (size_t second = 0; first + second <= bytes.size(); second += 1 + second / 8) {
      const uint32_t a = crc32c(bytes.data(), first);
      const uint32_t b = crc32c(bytes.data() + first, second);
      ASSERT_EQ(crc32c_combine(a, b, second), crc32c(bytes.data(), first + second))
          << first << " and " << second;
    }
  }
}

TEST(Checksum, CombinesLongStretches) {
  const std::vector<uint8_t> bytes = random_bytes(3'000'001, 11);
  const uint32_t whole = crc32c(bytes.data(), bytes.size());
  for (const size_t first : {size_t{1}, size_t{1'048'576}, size_t{2'999'999}}) {
    const uint32_t a = crc32c(bytes.data(), first);
    const size_t second = bytes.size() - first;
    EXPECT_EQ(crc32c_combine(a, crc32c(bytes.data() + first, second), second), whole) << first;
  }
}

// In any grouping, at lengths that no memory has.
TEST(Checksum, CombiningIsAssociativeAtAnyLength) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 100; ++round) {
    const auto a = static_cast<uint32_t>(random());
    const auto b = static_cast<uint32_t>(random());
    const auto c = static_cast<uint32_t>(random());
    const uint64_t b_bytes = random() >> 2, c_bytes = random() >> 2;
    EXPECT_EQ(crc32c_combine(crc32c_combine(a, b, b_bytes), c, c_bytes),
              crc32c_combine(a, crc32c_combine(b, c, c_bytes), b_bytes + c_bytes));
  }
}

TEST(Checksum, ChangesWithEverySingleBit) {
  std::vector<uint8_t> bytes = random_bytes(40, 9);
  const uint32_t before = crc32c(bytes.data(), bytes.size());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_NE(crc32c(bytes.data(), bytes.size()), before) << bit;
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace penstock
