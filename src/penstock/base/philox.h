// Philox4x32-10 (Salmon et al., SC 2011): random numbers as a pure function of a key and a counter.
// Whoever asks for element i of stream k gets the same number, whatever was drawn before and on
// whichever rank.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace penstock {

struct PhiloxKey {
  uint32_t low = 0;
  uint32_t high = 0;
};

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock philox(PhiloxKey key, PhiloxBlock counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key.low,
               static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key.high,
               static_cast<uint32_t>(first)};
    key.low += 0x9E3779B9;
    key.high += 0xBB67AE85;
  }
  return counter;
}

// 64-bit finaliser of SplitMix64: spreads nearby values over all bits.
inline uint64_t mix_bits(uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// The same name gives the same bits in every build (FNV-1a, then mixed).
inline uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3;
  }
  return mix_bits(hash);
}

inline PhiloxKey philox_key(uint64_t seed, uint64_t stream) {
  const uint64_t bits = mix_bits(seed ^ mix_bits(stream));
  return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
}

}  // namespace penstock
