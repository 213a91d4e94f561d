#include "penstock/gpu/rotary.h"
#include "penstock/gpu/vectors.cuh"

namespace penstock::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kAngles = 512;  // of a block: one or more rows of half a head

// A block works out the angles of its rows once, for all heads.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(const __grid_constant__ Rotation work,
                  const __grid_constant__ RotaryFrequencies frequencies) {
  __shared__ float2 turns[kAngles];  // cosine and sine
  const int half = static_cast<int>(frequencies.half_width);
  const int rows_each = kAngles / half;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * rows_each;
  const int rows =
      static_cast<int>(work.rows - first_row < rows_each ? work.rows - first_row : rows_each);
  for (int i = static_cast<int>(threadIdx.x); i < rows * half; i += kThreads) {
    const int64_t position = (first_row + i / half) % work.context;
    double sine;
    double cosine;
    sincos(static_cast<double>(position) * frequencies.radians[i % half], &sine, &cosine);
    turns[i] = {static_cast<float>(cosine), static_cast<float>(work.is_backward ? -sine : sine)};
  }
  __syncthreads();
  const int packs = half / N;
  const int items = packs * static_cast<int>(work.heads);
  for (int i = static_cast<int>(threadIdx.x); i < rows * items; i += kThreads) {
    const int row = i / items;
    const int head = i % items / packs;
    const int feature = i % packs * N;
    T* one = static_cast<T*>(work.x) + (first_row + row) * work.stride + head * 2 * half + feature;
    T* other = one + half;
    float a[N];
    float b[N];
    unpack(load<T, N>(one), a);
    unpack(load<T, N>(other), b);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float2 turn = turns[row * half + feature + n];
      const float turned = a[n] * turn.x - b[n] * turn.y;
      b[n] = b[n] * turn.x + a[n] * turn.y;
      a[n] = turned;
    }
    store<T, N>(one, pack<T, N>(a));
    store<T, N>(other, pack<T, N>(b));
  }
}

template <typename T, int N>
void run(const Rotation& work, const RotaryFrequencies& frequencies, Stream stream) {
  const int64_t blocks = ceil_div(work.rows, kAngles / frequencies.half_width);
  rotate_kernel<T, N><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(work, frequencies);
  PENSTOCK_CUDA(cudaGetLastError());
}

}  // namespace

RotaryFrequencies::RotaryFrequencies(std::span<const double> given)
    : half_width(static_cast<int64_t>(given.size())) {
  PENSTOCK_CHECK(half_width >= 1 && half_width <= kMost, half_width, " pairs of features to turn");
  std::copy(given.begin(), given.end(), radians);
}

void rotate(const Rotation& work, const RotaryFrequencies& frequencies, Stream stream) {
  if (work.rows == 0 || work.heads == 0) {
    return;
  }
  with_element(work.type, [&](auto element) {
    using T = decltype(element);
    constexpr int N = kVector<T>;
    const bool is_fast =
        frequencies.half_width % N == 0 && work.stride % N == 0 && is_aligned({work.x});
    is_fast ? run<T, N>(work, frequencies, stream) : run<T, 1>(work, frequencies, stream);
  });
}

}  // namespace penstock::gpu
