#include "penstock/kernels/dropout.h"

#include <algorithm>
#include <cmath>

namespace penstock::kernels {

namespace {

constexpr int kLanes = 16;

// Sixteen Philox blocks side by side: word w of lane i is the number of element 16 w + i of the
// group.
struct Numbers {
  alignas(64) uint32_t words[4][kLanes];
};

inline void draw_group(const DropoutMask& mask, uint64_t group, Numbers& numbers) {
  alignas(64) uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  const uint64_t first_block = group * kLanes;
  for (int i = 0; i < kLanes; ++i) {
    c0[i] = static_cast<uint32_t>(first_block) + static_cast<uint32_t>(i);
    c1[i] = static_cast<uint32_t>(first_block >> 32) ^ (mask.site << 16);
    c2[i] = static_cast<uint32_t>(mask.sample);
    c3[i] = static_cast<uint32_t>(mask.sample >> 32);
  }
  uint32_t key_low = mask.key.low, key_high = mask.key.high;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t first = uint64_t{0xD2511F53} * c0[i];
      const uint64_t second = uint64_t{0xCD9E8D57} * c2[i];
      c0[i] = static_cast<uint32_t>(second >> 32) ^ c1[i] ^ key_low;
      c1[i] = static_cast<uint32_t>(second);
      c2[i] = static_cast<uint32_t>(first >> 32) ^ c3[i] ^ key_high;
      c3[i] = static_cast<uint32_t>(first);
    }
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  for (int i = 0; i < kLanes; ++i) {
    numbers.words[0][i] = c0[i];
    numbers.words[1][i] = c1[i];
    numbers.words[2][i] = c2[i];
    numbers.words[3][i] = c3[i];
  }
}

template <typename T>
[[gnu::always_inline]] inline void apply(const DropoutMask& mask,
                                         int64_t first,
                                         int64_t count,
                                         T* values) {
  Numbers numbers;
  const uint32_t* flat = &numbers.words[0][0];
  for (int64_t done = 0; done < count; done += kDropoutGroup) {
    draw_group(mask, static_cast<uint64_t>((first + done) / kDropoutGroup), numbers);
    const int64_t here = std::min(kDropoutGroup, count - done);
    for (int64_t i = 0; i < here; ++i) {
      const float factor = flat[i] < mask.drop_below ? 0.0f : mask.scale;
      values[done + i] = from_float<T>(to_float(values[done + i]) * factor);
    }
  }
}

}  // namespace

DropoutMask dropout_mask(PhiloxKey key, uint32_t site, uint64_t sample, double share) {
  const double threshold = std::ldexp(share, 32);
  return {.key = key,
          .site = site,
          .sample = sample,
          .drop_below = static_cast<uint32_t>(std::min(threshold, 4294967295.0)),
          .scale = static_cast<float>(1.0 / (1.0 - share))};
}

PENSTOCK_CPU_CLONES void apply_dropout(const DropoutMask& mask,
                                       int64_t first,
                                       int64_t count,
                                       float* values) {
  apply(mask, first, count, values);
}

PENSTOCK_CPU_CLONES void apply_dropout(const DropoutMask& mask,
                                       int64_t first,
                                       int64_t count,
                                       Bf16* values) {
  apply(mask, first, count, values);
}

}  // namespace penstock::kernels
