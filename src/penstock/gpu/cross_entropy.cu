#include "penstock/gpu/cross_entropy.h"
#include "penstock/gpu/vectors.cuh"

namespace penstock::gpu {

namespace {

constexpr int kSharedThreads = 512;
constexpr int kGlobalThreads = 512;
constexpr int kPacksPerCopy = 4;  // a group of copies of a thread
constexpr int kCopiesAhead = 4;   // groups: 16 packs, all that 50,257 logits need

// Below all logits but -infinity. Finite, so that a difference is never infinity less infinity.
constexpr float kLowest = -1e38f;

// The largest logit so far, and the sum of exp(logit - largest). A NaN among the logits is not the
// largest but makes the sum NaN.
struct Softmax {
  float largest;
  float sum;
};

template <int N>
__device__ void add_logits(Softmax& softmax, const float (&logits)[N]) {
  float largest = softmax.largest;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    largest = fmaxf(largest, logits[n]);
  }
  // Two sums, for the additions wait for each other.
  float sums[2] = {softmax.sum * exp_fast(softmax.largest - largest), 0};
#pragma unroll
  for (int n = 0; n < N; ++n) {
    sums[n % 2] += exp_fast(logits[n] - largest);
  }
  softmax = {largest, sums[0] + sums[1]};
}

__device__ Softmax warp_softmax(Softmax mine) {
  const float largest = warp_max(mine.largest);
  return {largest, warp_sum(mine.sum * exp_fast(mine.largest - largest))};
}

// All threads get the same bits. One barrier: what threads wrote to shared memory before is visible
// after.
__device__ Softmax block_softmax(Softmax mine) {
  __shared__ Softmax warps[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  mine = warp_softmax(mine);
  if (lane == 0) {
    warps[threadIdx.x / kWarp] = mine;
  }
  __syncthreads();
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  return warp_softmax(lane < num_warps ? warps[lane] : Softmax{kLowest, 0});
}

// Elements of the pack at `column` beyond the vocabulary become -infinity, softmax 0.
template <int N>
__device__ void mask_padding(float (&logits)[N], int64_t column, int64_t vocabulary) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (column + n >= vocabulary) {
      logits[n] = -INFINITY;
    }
  }
}

template <typename T, int N>
__device__ void write_gradient(T* to, float (&logits)[N], float largest, float factor) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    logits[n] = exp_fast(logits[n] - largest) * factor;
  }
  store<T, N>(to, pack<T, N>(logits));
}

// The packs of a row from that at column `first` on.
template <typename T, int N>
__device__ void write_zeros(T* row, int64_t first, int64_t stride) {
  const float zeros[N] = {};
  for (int64_t column = first + threadIdx.x * N; column < stride; column += blockDim.x * N) {
    store<T, N>(row + column, pack<T, N>(zeros));
  }
}

template <typename T, int N>
__device__ void skip_row(const CrossEntropy& work, T* row) {
  if (threadIdx.x == 0) {
    work.losses[blockIdx.x] = 0;
  }
  if (work.writes_gradient) {
    write_zeros<T, N>(row, 0, work.stride);
  }
}

__device__ void write_loss(const CrossEntropy& work,
                           int64_t target,
                           float target_logit,
                           Softmax softmax) {
  if (threadIdx.x == 0) {
    work.losses[blockIdx.x] =
        target < work.vocabulary ? logf(softmax.sum) + (softmax.largest - target_logit) : NAN;
  }
}

// The target's own gradient, in place of what write_gradient left. By the thread that has written
// the pack: its two stores stay in order.
template <typename T, int N>
__device__ void write_target_gradient(
    const CrossEntropy& work, T* row, int64_t target, float target_logit, Softmax softmax) {
  if (target < work.vocabulary && target / N % blockDim.x == threadIdx.x) {
    const float probability = exp_fast(target_logit - softmax.largest) / softmax.sum;
    row[target] = from_float<T>((probability - 1) * work.scale);
  }
}

// A block has a row and keeps it in shared memory: pack i belongs to thread i % kSharedThreads,
// which copies, reads and writes it. The sums run while later packs are on their way.
template <typename T>
__global__ void __launch_bounds__(kSharedThreads, 2)
    shared_kernel(const __grid_constant__ CrossEntropy work) {
  constexpr int N = kVector<T>;
  extern __shared__ uint4 packs[];
  T* row = static_cast<T*>(work.logits) + blockIdx.x * work.stride;
  const int64_t target = work.targets[blockIdx.x];
  if (target < 0) {
    return skip_row<T, N>(work, row);
  }
  const int vocabulary = static_cast<int>(work.vocabulary);
  const int num_packs = (vocabulary + N - 1) / N;
  const auto fetch = [&](int first) {
#pragma unroll
    for (int i = 0; i < kPacksPerCopy; ++i) {
      const int at = first + i * kSharedThreads;
      if (at < num_packs) {
        copy_async(packs + at, row + at * N);
      }
    }
    commit_copies();
  };

  constexpr int kStep = kPacksPerCopy * kSharedThreads;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kCopiesAhead; ++i) {
    fetch(thread + i * kStep);
  }
  Softmax softmax{kLowest, 0};
  float logits[N];
  for (int first = 0; first < num_packs; first += kStep) {
    wait_copies<kCopiesAhead - 1>();
#pragma unroll
    for (int i = 0; i < kPacksPerCopy; ++i) {
      const int at = first + i * kSharedThreads + thread;
      if (at < num_packs) {
        unpack(Pack<T, N>{packs[at]}, logits);
        if ((at + 1) * N > vocabulary) {
          mask_padding(logits, at * N, vocabulary);
          packs[at] = pack<T, N>(logits).bits;
        }
        add_logits(softmax, logits);
      }
    }
    fetch(first + kCopiesAhead * kStep + thread);
  }
  softmax = block_softmax(softmax);

  const float target_logit =
      target < vocabulary ? to_float(reinterpret_cast<const T*>(packs)[target]) : 0;
  write_loss(work, target, target_logit, softmax);
  if (!work.writes_gradient) {
    return;
  }
  const float factor = work.scale / softmax.sum;
#pragma unroll 2
  for (int at = thread; at < num_packs; at += kSharedThreads) {
    unpack(Pack<T, N>{packs[at]}, logits);
    write_gradient<T, N>(row + at * N, logits, softmax.largest, factor);
  }
  write_zeros<T, N>(row, static_cast<int64_t>(num_packs) * N, work.stride);
  write_target_gradient<T, N>(work, row, target, target_logit, softmax);
}

// For any row: reads it twice from global memory.
template <typename T, int N>
__global__ void __launch_bounds__(kGlobalThreads)
    global_kernel(const __grid_constant__ CrossEntropy work) {
  T* row = static_cast<T*>(work.logits) + blockIdx.x * work.stride;
  const int64_t target = work.targets[blockIdx.x];
  if (target < 0) {
    return skip_row<T, N>(work, row);
  }
  // Before the barrier, after which the logits are overwritten.
  const float target_logit = target < work.vocabulary ? to_float(row[target]) : 0;
  const int64_t first = threadIdx.x * N;
  const int64_t step = blockDim.x * N;
  Softmax softmax{kLowest, 0};
  float logits[N];
#pragma unroll 2
  for (int64_t column = first; column < work.vocabulary; column += step) {
    unpack(load<T, N>(row + column), logits);
    mask_padding(logits, column, work.vocabulary);
    add_logits(softmax, logits);
  }
  softmax = block_softmax(softmax);

  write_loss(work, target, target_logit, softmax);
  if (!work.writes_gradient) {
    return;
  }
  const float factor = work.scale / softmax.sum;
  for (int64_t column = first; column < work.vocabulary; column += step) {
    unpack(load<T, N>(row + column), logits);
    mask_padding(logits, column, work.vocabulary);
    write_gradient<T, N>(row + column, logits, softmax.largest, factor);
  }
  write_zeros<T, N>(row, (work.vocabulary + N - 1) / N * N, work.stride);
  write_target_gradient<T, N>(work, row, target, target_logit, softmax);
}

template <typename T>
void run(const CrossEntropy& work, Stream stream) {
  constexpr int N = kVector<T>;
  const unsigned rows = static_cast<unsigned>(work.rows);
  const bool is_fast = work.stride % N == 0 && is_aligned({work.logits});
  const int64_t shared_bytes = ceil_div(work.vocabulary, N) * 16;
  if (is_fast && shared_bytes <= max_dynamic_shared_bytes()) {
    constexpr auto kernel = shared_kernel<T>;
    allow_large_shared_memory<kernel>();
    kernel<<<rows, kSharedThreads, static_cast<size_t>(shared_bytes), stream>>>(work);
  } else if (is_fast) {
    global_kernel<T, N><<<rows, kGlobalThreads, 0, stream>>>(work);
  } else {
    global_kernel<T, 1><<<rows, kGlobalThreads, 0, stream>>>(work);
  }
  PENSTOCK_CUDA(cudaGetLastError());
}

}  // namespace

void cross_entropy(const CrossEntropy& work, Stream stream) {
  if (work.rows == 0) {
    return;
  }
  PENSTOCK_CHECK(work.vocabulary > 0 && work.vocabulary <= work.stride,
                 "vocabulary ",
                 work.vocabulary,
                 ", stride ",
                 work.stride);
  with_element(work.type, [&](auto element) { run<decltype(element)>(work, stream); });
}

}  // namespace penstock::gpu
