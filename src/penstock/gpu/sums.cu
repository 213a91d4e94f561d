#include <limits>

#include "penstock/gpu/sums.h"
#include "penstock/gpu/vectors.cuh"

namespace penstock::gpu {

namespace {

constexpr int kPartialRows = 32;
constexpr int kSumThreads = 1024;

template <typename T, int N>
struct PlainSums {
  static constexpr int kRowsAhead = 4;
  using Loaded = Pack<T, N>;

  const T* x;
  int64_t stride;

  __device__ Loaded load(int64_t row, int64_t column) const {
    return gpu::load<T, N>(x + row * stride + column);
  }
  __device__ void use(const Loaded& loaded, int64_t, int64_t, float (&sums)[N]) const {
    float values[N];
    unpack(loaded, values);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      sums[n] += values[n];
    }
  }
};

// A block has 32 columns; thread y adds the partial sums y, y + 32, .., then the threads of a
// column are added in order. The partial sums of the last kernel are mostly still in L2: what costs
// is latency, hence many threads with few loads each.
__global__ void __launch_bounds__(kWarp* kPartialRows)
    partial_sums_kernel(const __grid_constant__ PartialSums work) {
  float* out = work.out[blockIdx.y];
  if (out == nullptr) {
    return;
  }
  const float* partials = work.partials + blockIdx.y * work.count * work.width;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (column < work.width) {
#pragma unroll 4
    for (int64_t p = threadIdx.y; p < work.count; p += kPartialRows) {
      sum += partials[p * work.width + column];
    }
  }
  __shared__ float sums[kPartialRows][kWarp];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < work.width) {
    float total = 0;
#pragma unroll
    for (int y = 0; y < kPartialRows; ++y) {
      total += sums[y][threadIdx.x];
    }
    out[column] += total;
  }
}

__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const float* values, int64_t count, double* total) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) {
    sum += static_cast<double>(values[i]);
  }
  __shared__ double sums[kSumThreads];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *total += sums[0];
  }
}

template <typename T, int N>
void add_column_sums_of(const ColumnSums& work, Stream stream) {
  const PlainSums<T, N> operation{static_cast<const T*>(work.x), work.stride};
  add_walked_sums<N>(operation, work.rows, work.width, work.workspace, work.out, stream);
}

}  // namespace

int64_t column_sums_workspace_floats(int64_t width) {
  // The widest packs leave the fewest blocks side by side, hence the most below each other.
  const int64_t column_blocks = std::max<int64_t>(1, ceil_div(width, kWarp * kVector<__half>));
  return walk_row_blocks(std::numeric_limits<int32_t>::max(), column_blocks) * width;
}

void add_column_sums(const ColumnSums& work, Stream stream) {
  if (work.rows == 0 || work.width == 0) {
    return;
  }
  with_element(work.type, [&](auto element) {
    using T = decltype(element);
    constexpr int N = kVector<T>;
    const bool is_fast = is_aligned({work.x}) && work.width % N == 0 && work.stride % N == 0;
    is_fast ? add_column_sums_of<T, N>(work, stream) : add_column_sums_of<T, 1>(work, stream);
  });
}

void add_partial_sums(const PartialSums& work, Stream stream) {
  if (work.count == 0 || work.width == 0) {
    return;
  }
  const bool is_one = work.out[1] == nullptr && work.out[2] == nullptr;
  const dim3 grid(static_cast<unsigned>(ceil_div(work.width, kWarp)), is_one ? 1 : 3);
  partial_sums_kernel<<<grid, dim3(kWarp, kPartialRows), 0, stream>>>(work);
  PENSTOCK_CUDA(cudaGetLastError());
}

void add_sum(const float* values, int64_t count, double* total, Stream stream) {
  if (count == 0) {
    return;
  }
  sum_kernel<<<1, kSumThreads, 0, stream>>>(values, count, total);
  PENSTOCK_CUDA(cudaGetLastError());
}

}  // namespace penstock::gpu
