// What the kernels share on the device: elements in packs of 16 bytes (or single ones, so that a
// kernel template serves odd widths too), warp reductions, asynchronous copies, and the walk down
// the rows of a matrix that sums its columns. All arithmetic is in float32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <mutex>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "penstock/gpu/check.h"
#include "penstock/gpu/sums.h"
#include "penstock/gpu/types.h"

namespace penstock::gpu {

inline constexpr int kWarp = 32;
template <typename T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

inline int64_t ceil_div(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

// True when 16-byte accesses through each of them are allowed; null is.
inline bool is_aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  });
}

// Of the current device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  PENSTOCK_CUDA(cudaGetDevice(&device));
  PENSTOCK_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

inline int64_t num_multiprocessors() {
  return device_attribute(cudaDevAttrMultiProcessorCount);
}

// The dynamic shared memory a block may have when 1 KB is left for its static one.
inline int64_t max_dynamic_shared_bytes() {
  return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 1024;
}

// Lets a kernel use all of that; once per kernel and device.
template <auto kernel>
void allow_large_shared_memory() {
  constexpr int kMaxDevices = 64;
  static std::once_flag done[kMaxDevices];
  int device = 0;
  PENSTOCK_CUDA(cudaGetDevice(&device));
  PENSTOCK_CHECK(device < kMaxDevices, "device ", device);
  std::call_once(done[device], [] {
    PENSTOCK_CUDA(cudaFuncSetAttribute(kernel,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(max_dynamic_shared_bytes())));
    PENSTOCK_CUDA(cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  });
}

// Calls function(T{}) with the element type's T.
template <typename Function>
void with_element(Type type, Function&& function) {
  switch (type) {
    case Type::Float32:
      return function(float{});
    case Type::BFloat16:
      return function(__nv_bfloat16{});
    case Type::Float16:
      return function(__half{});
  }
}

__device__ inline float to_float(float value) {
  return value;
}
__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ inline float to_float(__half value) {
  return __half2float(value);
}

template <typename T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

// Neighbouring elements as they lie in memory: 16 bytes of them, or one.
template <typename T, int N>
struct Pack {
  static_assert(N == kVector<T>);
  uint4 bits;
};
template <typename T>
struct Pack<T, 1> {
  T bits;
};

template <typename T, int N>
__device__ Pack<T, N> load(const T* from) {
  return {*reinterpret_cast<const decltype(Pack<T, N>::bits)*>(from)};
}
template <typename T, int N>
__device__ void store(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<decltype(Pack<T, N>::bits)*>(to) = pack.bits;
}

__device__ inline float2 to_floats(uint32_t bits, __nv_bfloat16) {
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF0000u)};
}
__device__ inline float2 to_floats(uint32_t bits, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}
__device__ inline uint32_t from_floats(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline uint32_t from_floats(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <typename T, int N>
__device__ void unpack(const Pack<T, N>& pack, float (&values)[N]) {
  if constexpr (N == 1) {
    values[0] = to_float(pack.bits);
  } else {
    const uint32_t words[4] = {pack.bits.x, pack.bits.y, pack.bits.z, pack.bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        values[i] = __uint_as_float(words[i]);
      } else {
        const float2 pair = to_floats(words[i], T{});
        values[2 * i] = pair.x;
        values[2 * i + 1] = pair.y;
      }
    }
  }
}

// Rounds to nearest even.
template <typename T, int N>
__device__ Pack<T, N> pack(const float (&values)[N]) {
  if constexpr (N == 1) {
    return {from_float<T>(values[0])};
  } else {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        words[i] = __float_as_uint(values[i]);
      } else {
        words[i] = from_floats(values[2 * i], values[2 * i + 1], T{});
      }
    }
    return {make_uint4(words[0], words[1], words[2], words[3])};
  }
}

// Every lane gets the same bits: an exchange adds the same two numbers on both sides.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  }
  return value;
}
__device__ inline float warp_max(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  }
  return value;
}

// e^value to about 2 units in the last place of value * log2(e); below 2^-126 it is 0. __expf would
// spend three more instructions on denormals.
__device__ inline float exp_fast(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value * 1.4426950408889634f));
  return power;
}

// 16 bytes from global to shared memory, both aligned. A thread may read what it copied itself
// after wait_copies; others need a barrier as well.
__device__ inline void copy_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `pending` of the latest groups are under way.
template <int pending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// The walk: a thread owns N neighbouring columns and goes down rows that lie gridDim.y * kWalkRows
// apart; a block then adds up its kWalkRows threads per column into one row of partial sums.
//
// An Operation has: kRowsAhead, rows loaded before the first is used; Loaded load(row, column), N
// columns of a row; void use(loaded, row, column, sums), which adds to float (&sums)[N].
inline constexpr int kWalkRows = 8;

template <int N, typename Operation>
__global__ void __launch_bounds__(kWarp* kWalkRows, 4)
    walk_columns(Operation operation, int64_t rows, int64_t width, float* partials) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x) * N;
  const int64_t step = static_cast<int64_t>(gridDim.y) * kWalkRows;
  float sums[N] = {};
  if (column < width) {
    constexpr int kAhead = Operation::kRowsAhead;
    int64_t row = static_cast<int64_t>(blockIdx.y) * kWalkRows + threadIdx.y;
    for (; row + (kAhead - 1) * step < rows; row += kAhead * step) {
      typename Operation::Loaded loaded[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        loaded[i] = operation.load(row + i * step, column);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        operation.use(loaded[i], row + i * step, column, sums);
      }
    }
    for (; row < rows; row += step) {
      operation.use(operation.load(row, column), row, column, sums);
    }
  }
  if (partials == nullptr) {
    return;
  }
  __shared__ float tile[kWalkRows][kWarp * N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    tile[threadIdx.y][threadIdx.x * N + n] = sums[n];
  }
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWarp * N;
  for (int i = threadIdx.y * kWarp + threadIdx.x; i < kWarp * N && first + i < width;
       i += kWarp * kWalkRows) {
    float sum = 0;
#pragma unroll
    for (int y = 0; y < kWalkRows; ++y) {
      sum += tile[y][i];
    }
    partials[blockIdx.y * width + first + i] = sum;
  }
}

// Two waves of blocks, so that a slow one does not hold up the end; fewer when the rows are few.
inline int64_t walk_row_blocks(int64_t rows, int64_t column_blocks) {
  constexpr int64_t kBlocksPerMultiprocessor = 8;
  constexpr int64_t kLeastRowsPerThread = 4;
  const int64_t most =
      std::max<int64_t>(1, kBlocksPerMultiprocessor * num_multiprocessors() / column_blocks);
  return std::min(most, ceil_div(rows, kLeastRowsPerThread * kWalkRows));
}

// Runs the walk; out[c] += the sums of column c. Null out: the walk alone, without a workspace.
// `workspace` holds column_sums_workspace_floats(width).
template <int N, typename Operation>
void add_walked_sums(const Operation& operation,
                     int64_t rows,
                     int64_t width,
                     float* workspace,
                     float* out,
                     Stream stream) {
  const int64_t column_blocks = ceil_div(width, kWarp * N);
  const int64_t row_blocks = walk_row_blocks(rows, column_blocks);
  const dim3 grid(static_cast<unsigned>(column_blocks), static_cast<unsigned>(row_blocks));
  float* partials = out == nullptr ? nullptr : workspace;
  walk_columns<N><<<grid, dim3(kWarp, kWalkRows), 0, stream>>>(operation, rows, width, partials);
  PENSTOCK_CUDA(cudaGetLastError());
  if (out != nullptr) {
    add_partial_sums({.partials = partials, .count = row_blocks, .width = width, .out = {out}},
                     stream);
  }
}

}  // namespace penstock::gpu
