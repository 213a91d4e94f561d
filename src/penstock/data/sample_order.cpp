#include "penstock/data/sample_order.h"

#include <bit>

#include "penstock/base/error.h"

namespace penstock::data {

namespace {

// Four rounds mix a large domain. With halves of one or two bits a round has few functions to
// choose from; there the bias between permutations shrinks up to about ten rounds.
constexpr uint32_t kRounds = 12;

}  // namespace

SampleOrder::SampleOrder(int64_t samples, uint64_t seed)
    : samples_(static_cast<uint64_t>(samples)), key_(philox_key(seed, hash_name("sample order"))) {
  PENSTOCK_CHECK(samples > 0, samples, " samples");
  half_bits_ = (static_cast<int>(std::bit_width(samples_ - 1)) + 1) / 2;
}

int64_t SampleOrder::at(int64_t index) const {
  PENSTOCK_CHECK(index >= 0, "index ", index);
  const uint64_t epoch = static_cast<uint64_t>(index) / samples_;
  uint64_t value = static_cast<uint64_t>(index) % samples_;
  do {
    value = permute(value, epoch);
  } while (value >= samples_);
  return static_cast<int64_t>(value);
}

uint64_t SampleOrder::permute(uint64_t value, uint64_t epoch) const {
  // At most 32 bits each, as there are fewer than 2^63 samples.
  const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << half_bits_) - 1);
  uint32_t left = static_cast<uint32_t>(value >> half_bits_);
  uint32_t right = static_cast<uint32_t>(value) & mask;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const PhiloxBlock counter = {
        right, round, static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32)};
    const uint32_t mixed = left ^ (philox(key_, counter)[0] & mask);
    left = right;
    right = mixed;
  }
  return (uint64_t{left} << half_bits_) | right;
}

}  // namespace penstock::data
