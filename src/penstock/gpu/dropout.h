// Dropout with the mask of penstock/kernels/dropout.h: the same elements drop on the GPU and on the
// CPU. Nothing is stored; backward is the same call on the gradient.
#pragma once

#include <cstdint>

#include "penstock/gpu/types.h"
#include "penstock/kernels/dropout.h"

namespace penstock::gpu {

// out[s, i] = x[s, i] * (0 or mask.scale), drawn for element i of sample mask.sample + s.
struct Dropout {
  Type type;
  const void* x;  // [samples, per_sample]
  void* out;      // like x; may be x
  int64_t samples;
  int64_t per_sample;
  kernels::DropoutMask mask;  // its sample is the first one's index in the run
};
void apply_dropout(const Dropout& work, Stream stream);

}  // namespace penstock::gpu
