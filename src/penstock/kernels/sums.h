// Sums of two runs of numbers, as ranks need them that add up what others send.
#pragma once

#include <cstdint>

#include "penstock/kernels/cpu.h"

namespace penstock::kernels {

// sum[i] += values[i]. In float, rounded back at each addition; the order of the two makes no
// difference, and i may be computed in any order.
void add(float* sum, const float* values, int64_t count);
void add(Bf16* sum, const Bf16* values, int64_t count);

}  // namespace penstock::kernels
