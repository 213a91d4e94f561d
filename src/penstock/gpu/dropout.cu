#include <algorithm>

#include "penstock/gpu/check.h"
#include "penstock/gpu/dropout.h"
#include "penstock/gpu/vectors.cuh"

namespace penstock::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocksOfGroup = 16;  // Philox blocks; each gives one number to each quarter
constexpr int kNeighbours = 4;      // neighbouring Philox blocks per thread
constexpr int kWords = 4;
constexpr int kThreadsOfGroup = kBlocksOfGroup / kNeighbours;
constexpr int64_t kMaxGridY = 65535;

static_assert(kBlocksOfGroup * kWords == kernels::kDropoutGroup);

// penstock/base/philox.h, for a kernel.
__device__ void philox(PhiloxKey key, uint32_t (&counter)[kWords]) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter[0] = static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key.low;
    counter[1] = static_cast<uint32_t>(second);
    counter[2] = static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key.high;
    counter[3] = static_cast<uint32_t>(first);
    key.low += 0x9E3779B9;
    key.high += 0xBB67AE85;
  }
}

template <typename T>
__device__ void load_neighbours(const T* from, float (&values)[kNeighbours]) {
  if constexpr (sizeof(T) == 4) {
    unpack(load<T, kNeighbours>(from), values);
  } else {  // half a pack
    const uint2 bits = *reinterpret_cast<const uint2*>(from);
    const float2 low = to_floats(bits.x, T{});
    const float2 high = to_floats(bits.y, T{});
    values[0] = low.x;
    values[1] = low.y;
    values[2] = high.x;
    values[3] = high.y;
  }
}

template <typename T>
__device__ void store_neighbours(T* to, const float (&values)[kNeighbours]) {
  if constexpr (sizeof(T) == 4) {
    store(to, pack<T, kNeighbours>(values));
  } else {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(from_floats(values[0], values[1], T{}), from_floats(values[2], values[3], T{}));
  }
}

// As vectors only where every sample starts on one and none crosses its end. What lies outside of
// the sample is left alone.
template <bool kIsVector, typename T>
__device__ void load_within(const T* sample,
                            int64_t at,
                            int64_t count,
                            float (&values)[kNeighbours]) {
  if constexpr (kIsVector) {
    if (at < count) {
      load_neighbours(sample + at, values);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kNeighbours; ++k) {
      if (at + k < count) {
        values[k] = to_float(sample[at + k]);
      }
    }
  }
}

template <bool kIsVector, typename T>
__device__ void store_within(T* sample,
                             int64_t at,
                             int64_t count,
                             const float (&values)[kNeighbours]) {
  if constexpr (kIsVector) {
    if (at < count) {
      store_neighbours(sample + at, values);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kNeighbours; ++k) {
      if (at + k < count) {
        sample[at + k] = from_float<T>(values[k]);
      }
    }
  }
}

// Element 16 w + i of a group takes word w of the group's Philox block i. A thread draws blocks
// i .. i + 3 and so owns four neighbouring elements in each quarter of the group; four threads
// together touch 16 neighbouring elements, whole 32-byte sectors, at a time.
template <typename T, bool kIsVector>
__global__ void __launch_bounds__(kThreads)
    drop(const T* x, T* out, int64_t samples, int64_t per_sample, kernels::DropoutMask mask) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t group = thread / kThreadsOfGroup;
  const int block = static_cast<int>(thread % kThreadsOfGroup) * kNeighbours;
  const int64_t first = group * kernels::kDropoutGroup + block;
  if (first >= per_sample) {
    return;
  }
  const uint64_t first_block = static_cast<uint64_t>(group) * kBlocksOfGroup;
  for (int64_t s = blockIdx.y; s < samples; s += gridDim.y) {
    const T* from = x + s * per_sample;
    float values[kWords][kNeighbours] = {};
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      load_within<kIsVector>(from, first + w * kBlocksOfGroup, per_sample, values[w]);
    }
    const uint64_t sample = mask.sample + static_cast<uint64_t>(s);
#pragma unroll
    for (int k = 0; k < kNeighbours; ++k) {
      uint32_t numbers[kWords] = {
          static_cast<uint32_t>(first_block) + static_cast<uint32_t>(block + k),
          static_cast<uint32_t>(first_block >> 32) ^ (mask.site << 16),
          static_cast<uint32_t>(sample),
          static_cast<uint32_t>(sample >> 32)};
      philox(mask.key, numbers);
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        // A product, not a choice: an infinity that drops becomes NaN, as on the CPU.
        values[w][k] *= numbers[w] < mask.drop_below ? 0.0f : mask.scale;
      }
    }
    T* to = out + s * per_sample;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      store_within<kIsVector>(to, first + w * kBlocksOfGroup, per_sample, values[w]);
    }
  }
}

template <typename T>
void launch(const Dropout& work, Stream stream) {
  const int64_t groups = ceil_div(work.per_sample, kernels::kDropoutGroup);
  const int64_t blocks = ceil_div(groups * kThreadsOfGroup, kThreads);
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(std::min(work.samples, kMaxGridY)));
  const T* x = static_cast<const T*>(work.x);
  T* out = static_cast<T*>(work.out);
  const bool is_vector = work.per_sample % kNeighbours == 0 && is_aligned({x, out});
  const auto kernel = is_vector ? drop<T, true> : drop<T, false>;
  kernel<<<grid, kThreads, 0, stream>>>(x, out, work.samples, work.per_sample, work.mask);
  PENSTOCK_CUDA(cudaGetLastError());
}

}  // namespace

void apply_dropout(const Dropout& work, Stream stream) {
  if (work.samples == 0 || work.per_sample == 0) {
    return;
  }
  with_element(work.type, [&]<typename T>(T) { launch<T>(work, stream); });
}

}  // namespace penstock::gpu
