// Dropout whose mask is a pure function of (key, sample, element): the same however a batch is cut,
// on whichever rank, and again when a layer is recomputed. Nothing is stored; backward draws the
// mask once more.
#pragma once

#include <cstdint>

#include "penstock/base/philox.h"
#include "penstock/kernels/cpu.h"

namespace penstock::kernels {

// Elements are drawn in groups of this many; a call covers whole groups (only the last may be
// short).
inline constexpr int64_t kDropoutGroup = 64;

struct DropoutMask {
  PhiloxKey key;            // from seed, step and layer
  uint32_t site = 0;        // which dropout of that layer
  uint64_t sample = 0;      // index of the sample in the run
  uint32_t drop_below = 0;  // an element is dropped when its 32-bit number is below this
  float scale = 1;          // 1 / (1 - share dropped), for the elements that stay
};

DropoutMask dropout_mask(PhiloxKey key, uint32_t site, uint64_t sample, double share);

// values[i] *= 0 or scale, for elements first .. first + count of the sample; first is a multiple
// of kDropoutGroup.
void apply_dropout(const DropoutMask& mask, int64_t first, int64_t count, float* values);
void apply_dropout(const DropoutMask& mask, int64_t first, int64_t count, Bf16* values);

}  // namespace penstock::kernels
