#include "penstock/gpu/norm_rows.cuh"

namespace penstock::gpu {

namespace {

constexpr int kMaxRegisterWidth = 2048;

// kIsCentred: layer norm, which takes the mean off and adds a shift; else root-mean-square norm.
template <bool kIsCentred>
__device__ void write_statistics(const NormForward& work, int64_t row, float mean, float inverse) {
  if (threadIdx.x % kWarp != 0) {
    return;
  }
  if (kIsCentred && work.mean != nullptr) {
    work.mean[row] = mean;
  }
  if (work.inverse_deviation != nullptr) {
    work.inverse_deviation[row] = inverse;
  }
}

template <bool kIsCentred, typename T, int N>
__device__ void write_normalised(const NormForward& work,
                                 int64_t row,
                                 int64_t column,
                                 float mean,
                                 float inverse,
                                 float (&values)[N]) {
  float scale[N];
  float shift[N];
  load_floats(work.scale + column, scale);
  if constexpr (kIsCentred) {
    load_floats(work.shift + column, shift);
  }
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if constexpr (kIsCentred) {
      values[n] = (values[n] - mean) * inverse * scale[n] + shift[n];
    } else {
      values[n] = values[n] * inverse * scale[n];
    }
  }
  store<T, N>(static_cast<T*>(work.out) + row * work.width + column, pack<T, N>(values));
}

// The row stays in registers, V packs a lane, so that the variance can be taken about the mean.
template <typename T, int V, bool kIsCentred>
__global__ void __launch_bounds__(kRowsPerBlock* kWarp)
    norm_register_kernel(const __grid_constant__ NormForward work) {
  constexpr int N = kVector<T>;
  const int64_t row = warp_row();
  if (row >= work.rows) {
    return;
  }
  const int width = static_cast<int>(work.width);
  const int first = static_cast<int>(threadIdx.x % kWarp) * N;
  const T* x = static_cast<const T*>(work.x) + row * work.width;
  Pack<T, N> packs[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (first + v * kWarp * N < width) {
      packs[v] = load<T, N>(x + first + v * kWarp * N);
    }
  }
  float values[V][N] = {};
  float sum = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (first + v * kWarp * N < width) {
      unpack(packs[v], values[v]);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      sum += values[v][n];
    }
  }
  const float mean = kIsCentred ? warp_sum(sum) / static_cast<float>(width) : 0;
  float squares = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (first + v * kWarp * N < width) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float centred = values[v][n] - mean;
        squares += centred * centred;
      }
    }
  }
  const float inverse = rsqrtf(warp_sum(squares) / static_cast<float>(width) + work.epsilon);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (first + v * kWarp * N < width) {
      write_normalised<kIsCentred, T, N>(
          work, row, first + v * kWarp * N, mean, inverse, values[v]);
    }
  }
  write_statistics<kIsCentred>(work, row, mean, inverse);
}

// For any width: reads the row three times, twice from a cache if it is not too long.
template <typename T, int N, bool kIsCentred>
__global__ void __launch_bounds__(kRowsPerBlock* kWarp)
    norm_plain_kernel(const __grid_constant__ NormForward work) {
  const int64_t row = warp_row();
  if (row >= work.rows) {
    return;
  }
  const int64_t first = static_cast<int64_t>(threadIdx.x % kWarp) * N;
  const T* x = static_cast<const T*>(work.x) + row * work.width;
  float values[N];
  float sum = 0;
  for (int64_t column = first; kIsCentred && column < work.width; column += kWarp * N) {
    unpack(load<T, N>(x + column), values);
    for (int n = 0; n < N; ++n) {
      sum += values[n];
    }
  }
  const float mean = kIsCentred ? warp_sum(sum) / static_cast<float>(work.width) : 0;
  float squares = 0;
  for (int64_t column = first; column < work.width; column += kWarp * N) {
    unpack(load<T, N>(x + column), values);
    for (int n = 0; n < N; ++n) {
      squares += (values[n] - mean) * (values[n] - mean);
    }
  }
  const float inverse = rsqrtf(warp_sum(squares) / static_cast<float>(work.width) + work.epsilon);
  for (int64_t column = first; column < work.width; column += kWarp * N) {
    unpack(load<T, N>(x + column), values);
    write_normalised<kIsCentred, T, N>(work, row, column, mean, inverse, values);
  }
  write_statistics<kIsCentred>(work, row, mean, inverse);
}

template <typename T, int V, bool kIsCentred>
void run_register_norm(const NormForward& work, Stream stream) {
  if constexpr (V * kVector<T> * kWarp <= kMaxRegisterWidth) {
    if (work.width > V * kVector<T> * kWarp) {
      // In steps of 256 columns for all types.
      return run_register_norm<T, V + kVector<__half> / kVector<T>, kIsCentred>(work, stream);
    }
    norm_register_kernel<T, V, kIsCentred>
        <<<warp_row_blocks(work.rows), kRowsPerBlock * kWarp, 0, stream>>>(work);
  }
}

template <typename T, bool kIsCentred>
void run_norm(const NormForward& work, Stream stream) {
  constexpr int N = kVector<T>;
  const bool is_fast = work.width % N == 0 && is_aligned({work.x, work.out, work.scale}) &&
                       (!kIsCentred || is_aligned({work.shift}));
  if (is_fast && work.width <= kMaxRegisterWidth) {
    run_register_norm<T, kVector<__half> / N, kIsCentred>(work, stream);
  } else {
    const auto kernel =
        is_fast ? norm_plain_kernel<T, N, kIsCentred> : norm_plain_kernel<T, 1, kIsCentred>;
    kernel<<<warp_row_blocks(work.rows), kRowsPerBlock * kWarp, 0, stream>>>(work);
  }
  PENSTOCK_CUDA(cudaGetLastError());
}

template <bool kIsCentred>
void run_any_norm(const NormForward& work, Stream stream) {
  if (work.rows == 0 || work.width == 0) {
    return;
  }
  with_element(work.type,
               [&](auto element) { run_norm<decltype(element), kIsCentred>(work, stream); });
}

}  // namespace

void layer_norm(const NormForward& work, Stream stream) {
  run_any_norm</*kIsCentred=*/true>(work, stream);
}

void rms_norm(const NormForward& work, Stream stream) {
  run_any_norm</*kIsCentred=*/false>(work, stream);
}

}  // namespace penstock::gpu
