#include "penstock/gpu/swiglu.h"
#include "penstock/gpu/vectors.cuh"

namespace penstock::gpu {

namespace {

constexpr int kThreads = 256;

// 1 / (1 + exp(-x)). The fast form is good to 1e-6, below the rounding of 16 bits; exp(-x) may
// become infinite, and the result 0.
template <typename T>
__device__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 4) {
    return 1 / (1 + expf(-x));
  } else {
    return __fdividef(1.0f, 1 + exp_fast(-x));
  }
}

// A thread has read all of its elements before it writes one, so results may take any operand's
// place.
template <typename T, int N>
__device__ void forward_at(const Swiglu& work, int64_t at) {
  float gate[N];
  float up[N];
  unpack(load<T, N>(static_cast<const T*>(work.gate) + at), gate);
  unpack(load<T, N>(static_cast<const T*>(work.up) + at), up);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    gate[n] = gate[n] * sigmoid<T>(gate[n]) * up[n];
  }
  store<T, N>(static_cast<T*>(work.out) + at, pack<T, N>(gate));
}

// With s the sigmoid of the gate, the slope of silu is s + gate s (1 - s).
template <typename T, int N>
__device__ void backward_at(const SwigluBackward& work, int64_t at) {
  float gradient[N];
  float gate[N];
  float up[N];
  unpack(load<T, N>(static_cast<const T*>(work.gradient) + at), gradient);
  unpack(load<T, N>(static_cast<const T*>(work.gate) + at), gate);
  unpack(load<T, N>(static_cast<const T*>(work.up) + at), up);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float s = sigmoid<T>(gate[n]);
    const float silu = gate[n] * s;
    gate[n] = gradient[n] * up[n] * (s + silu * (1 - s));
    up[n] = gradient[n] * silu;
  }
  store<T, N>(static_cast<T*>(work.gate_gradient) + at, pack<T, N>(gate));
  store<T, N>(static_cast<T*>(work.up_gradient) + at, pack<T, N>(up));
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(const __grid_constant__ Swiglu work) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t whole = work.count / N * N;
  if (thread * N < whole) {
    forward_at<T, N>(work, thread * N);
  }
  if (blockIdx.x == 0 && whole + threadIdx.x < work.count) {
    forward_at<T, 1>(work, whole + threadIdx.x);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(const __grid_constant__ SwigluBackward work) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t whole = work.count / N * N;
  if (thread * N < whole) {
    backward_at<T, N>(work, thread * N);
  }
  if (blockIdx.x == 0 && whole + threadIdx.x < work.count) {
    backward_at<T, 1>(work, whole + threadIdx.x);
  }
}

// At least one block, for elements beyond the last whole pack.
template <int N>
unsigned blocks_of(int64_t count) {
  return static_cast<unsigned>(std::max<int64_t>(1, ceil_div(count / N, kThreads)));
}

}  // namespace

void swiglu(const Swiglu& work, Stream stream) {
  if (work.count == 0) {
    return;
  }
  with_element(work.type, [&](auto element) {
    using T = decltype(element);
    constexpr int N = kVector<T>;
    if (is_aligned({work.gate, work.up, work.out})) {
      swiglu_kernel<T, N><<<blocks_of<N>(work.count), kThreads, 0, stream>>>(work);
    } else {
      swiglu_kernel<T, 1><<<blocks_of<1>(work.count), kThreads, 0, stream>>>(work);
    }
    PENSTOCK_CUDA(cudaGetLastError());
  });
}

void swiglu_backward(const SwigluBackward& work, Stream stream) {
  if (work.count == 0) {
    return;
  }
  with_element(work.type, [&](auto element) {
    using T = decltype(element);
    constexpr int N = kVector<T>;
    if (is_aligned({work.gradient, work.gate, work.up, work.gate_gradient, work.up_gradient})) {
      swiglu_backward_kernel<T, N><<<blocks_of<N>(work.count), kThreads, 0, stream>>>(work);
    } else {
      swiglu_backward_kernel<T, 1><<<blocks_of<1>(work.count), kThreads, 0, stream>>>(work);
    }
    PENSTOCK_CUDA(cudaGetLastError());
  });
}

}  // namespace penstock::gpu
