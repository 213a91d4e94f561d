#include "penstock/gpu/gelu.h"
#include "penstock/gpu/sums.h"
#include "penstock/gpu/vectors.cuh"

namespace penstock::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kPacksPerThread = 2;

constexpr float kTwiceRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

// 0.5 (1 + tanh(u)) is 1 / (1 + exp(-2u)), which loses no digits where tanh(u) is close to -1. The
// fast forms are good to 1e-5 or better, below the rounding of 16 bits; exp(-2u) may become
// infinite, and the result 0.
template <typename T>
__device__ float gate(float x) {
  const float twice_u = kTwiceRootTwoOverPi * x * (1 + kCubic * x * x);
  if constexpr (sizeof(T) == 4) {
    return 1 / (1 + expf(-twice_u));
  } else {
    return __fdividef(1.0f, 1 + exp_fast(-twice_u));
  }
}

template <typename T>
__device__ float gelu_of(float x) {
  return x * gate<T>(x);
}

// With s the gate: s + x s', where s' = s (1 - s) d(2u)/dx.
template <typename T>
__device__ float gelu_slope(float x) {
  const float s = gate<T>(x);
  const float d_twice_u = kTwiceRootTwoOverPi * (1 + 3 * kCubic * x * x);
  return s + x * (s * (1 - s)) * d_twice_u;
}

template <typename T, int N>
__device__ void gelu_pack(const Pack<T, N>& in, T* out) {
  float values[N];
  unpack(in, values);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    values[n] = gelu_of<T>(values[n]);
  }
  store<T, N>(out, pack<T, N>(values));
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) gelu_kernel(const T* x, T* out, int64_t count) {
  const int64_t num_packs = count / N;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * (kThreads * kPacksPerThread) + threadIdx.x;
  Pack<T, N> packs[kPacksPerThread];
#pragma unroll
  for (int i = 0; i < kPacksPerThread; ++i) {
    if (first + i * kThreads < num_packs) {
      packs[i] = load<T, N>(x + (first + i * kThreads) * N);
    }
  }
#pragma unroll
  for (int i = 0; i < kPacksPerThread; ++i) {
    if (first + i * kThreads < num_packs) {
      gelu_pack<T, N>(packs[i], out + (first + i * kThreads) * N);
    }
  }
  const int64_t rest = num_packs * N + threadIdx.x;
  if (blockIdx.x == 0 && rest < count) {
    gelu_pack<T, 1>(load<T, 1>(x + rest), out + rest);
  }
}

template <typename T, int N>
void run_gelu(const void* x, void* out, int64_t count, Stream stream) {
  // At least one block, for elements beyond the last whole pack.
  const int64_t blocks = std::max<int64_t>(1, ceil_div(count / N, kThreads * kPacksPerThread));
  gelu_kernel<T, N><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(x), static_cast<T*>(out), count);
  PENSTOCK_CUDA(cudaGetLastError());
}

template <typename T, int N>
struct Backward {
  static constexpr int kRowsAhead = 2;
  struct Loaded {
    Pack<T, N> dy, x;
  };

  const T* dy;  // may be dx: a thread has read an element before it writes it
  const T* x;
  T* dx;
  int64_t width;

  __device__ Loaded load(int64_t row, int64_t column) const {
    const int64_t at = row * width + column;
    return {gpu::load<T, N>(dy + at), gpu::load<T, N>(x + at)};
  }
  __device__ void use(const Loaded& loaded, int64_t row, int64_t column, float (&sums)[N]) const {
    float gradients[N];
    float inputs[N];
    unpack(loaded.dy, gradients);
    unpack(loaded.x, inputs);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      gradients[n] *= gelu_slope<T>(inputs[n]);
    }
    const Pack<T, N> rounded = pack<T, N>(gradients);
    store<T, N>(dx + row * width + column, rounded);
    unpack(rounded, gradients);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      sums[n] += gradients[n];
    }
  }
};

template <typename T, int N>
void run_backward(const GeluBackward& work, Stream stream) {
  const Backward<T, N> operation{static_cast<const T*>(work.dy),
                                 static_cast<const T*>(work.x),
                                 static_cast<T*>(work.dx),
                                 work.width};
  add_walked_sums<N>(operation, work.rows, work.width, work.workspace, work.bias_gradient, stream);
}

}  // namespace

void gelu(Type type, const void* x, void* out, int64_t count, Stream stream) {
  if (count == 0) {
    return;
  }
  with_element(type, [&](auto element) {
    using T = decltype(element);
    is_aligned({x, out}) ? run_gelu<T, kVector<T>>(x, out, count, stream)
                         : run_gelu<T, 1>(x, out, count, stream);
  });
}

int64_t gelu_backward_workspace_floats(int64_t width) {
  return column_sums_workspace_floats(width);
}

void gelu_backward(const GeluBackward& work, Stream stream) {
  if (work.rows == 0 || work.width == 0) {
    return;
  }
  with_element(work.type, [&](auto element) {
    using T = decltype(element);
    constexpr int N = kVector<T>;
    const bool is_fast = is_aligned({work.dy, work.x, work.dx}) && work.width % N == 0;
    is_fast ? run_backward<T, N>(work, stream) : run_backward<T, 1>(work, stream);
  });
}

}  // namespace penstock::gpu
