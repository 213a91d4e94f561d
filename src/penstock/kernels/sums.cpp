#include "penstock/kernels/sums.h"

namespace penstock::kernels {

PENSTOCK_CPU_CLONES void add(float* sum, const float* values, int64_t count) {
  float* __restrict to = sum;
  const float* __restrict from = values;
  for (int64_t i = 0; i < count; ++i) {
    to[i] += from[i];
  }
}

PENSTOCK_CPU_CLONES void add(Bf16* sum, const Bf16* values, int64_t count) {
  Bf16* __restrict to = sum;
  const Bf16* __restrict from = values;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = from_float<Bf16>(to_float(to[i]) + to_float(from[i]));
  }
}

}  // namespace penstock::kernels
