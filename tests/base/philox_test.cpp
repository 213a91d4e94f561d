#include "penstock/base/philox.h"

#include <set>

#include <gtest/gtest.h>

namespace penstock {
namespace {

// Known answers of Random123, kat_vectors, philox4x32 with 10 rounds.
TEST(Philox, GivesThePublishedValues) {
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Counter and key: digits of pi.
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryBitOfKeyAndCounterChangesEveryWord) {
  const PhiloxBlock before = philox({1, 2}, {3, 4, 5, 6});
  for (int bit = 0; bit < 192; ++bit) {
    PhiloxKey key{1, 2};
    PhiloxBlock counter{3, 4, 5, 6};
    const int word = bit / 32;
    (word == 4   ? key.low
     : word == 5 ? key.high
                 : counter[static_cast<size_t>(word)]) ^= uint32_t{1} << bit % 32;
    const PhiloxBlock after = philox(key, counter);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NE(after[i], before[i]) << "bit " << bit << ", word " << i;
    }
  }
}

TEST(MixBits, GivesThePublishedSequence) {
  // SplitMix64 seeded with 1234567: its state grows by the constant that mix_bits adds.
  constexpr uint64_t step = 0x9E3779B97F4A7C15;
  const uint64_t seed = 1234567;
  EXPECT_EQ(mix_bits(seed), 6457827717110365317u);
  EXPECT_EQ(mix_bits(seed + step), 3203168211198807973u);
  EXPECT_EQ(mix_bits(seed + 2 * step), 9817491932198370423u);
}

TEST(HashName, IsMixedFnv1a) {
  EXPECT_EQ(hash_name(""), mix_bits(0xCBF29CE484222325));
  EXPECT_EQ(hash_name("a"), mix_bits(0xAF63DC4C8601EC8C));
  EXPECT_EQ(hash_name("foobar"), mix_bits(0x85944171F73967E8));
  EXPECT_EQ(hash_name("\xFF"), mix_bits((0xCBF29CE484222325 ^ 0xFF) * 0x100000001B3));
}

TEST(PhiloxKeys, OfNearbySeedsAndStreamsDiffer) {
  std::set<std::pair<uint32_t, uint32_t>> keys;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (uint64_t stream = 0; stream < 100; ++stream) {
      const PhiloxKey key = philox_key(seed, stream);
      keys.emplace(key.low, key.high);
    }
  }
  EXPECT_EQ(keys.size(), 10'000u);
}

}  // namespace
}  // namespace penstock
