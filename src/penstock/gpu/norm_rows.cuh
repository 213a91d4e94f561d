// What the norm's two directions share. Internal to norm.cu and norm_backward.cu.
#pragma once

#include "penstock/gpu/norm.h"
#include "penstock/gpu/vectors.cuh"

namespace penstock::gpu {

namespace {

// A warp has a row.
constexpr int kRowsPerBlock = 4;

__device__ int64_t warp_row() {
  return static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWarp;
}

unsigned warp_row_blocks(int64_t rows) {
  return static_cast<unsigned>(ceil_div(rows, kRowsPerBlock));
}

template <int N>
__device__ void load_floats(const float* from, float (&values)[N]) {
  if constexpr (N == 1) {
    values[0] = *from;
  } else {
#pragma unroll
    for (int n = 0; n < N; n += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + n);
      values[n] = four.x;
      values[n + 1] = four.y;
      values[n + 2] = four.z;
      values[n + 3] = four.w;
    }
  }
}

}  // namespace

}  // namespace penstock::gpu
