#include <algorithm>
#include <cmath>

#include "penstock/base/error.h"
#include "penstock/gpu/check.h"
#include "penstock/gpu/optimizers.h"
#include "penstock/gpu/vectors.cuh"

namespace penstock::gpu {

namespace {

constexpr int kThreads = 256;
constexpr int kQuad = 4;  // elements a thread takes at a time
constexpr int kSliceElements = kChunkElements / kChunkSlices;

template <int N>
__device__ void load_floats(const float* from, float (&values)[N]) {
  unpack(load<float, N>(from), values);
}
template <int N>
__device__ void store_floats(float* to, const float (&values)[N]) {
  store(to, pack<float, N>(values));
}

// Four elements of a 16-bit type are half a pack.
template <int N, typename T>
__device__ void store_copy(T* to, const float (&values)[N]) {
  if constexpr (N == kQuad && sizeof(T) == 2) {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(from_floats(values[0], values[1], T{}), from_floats(values[2], values[3], T{}));
  } else {
    store(to, pack<T, N>(values));
  }
}

// The sum over the block in thread 0, always added in the same order.
__device__ double block_sum(double value) {
  __shared__ double warp_sums[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xFFFFFFFF, value, offset);
  }
  __syncthreads();  // an earlier call's sums may still be read
  if (threadIdx.x % kWarp == 0) {
    warp_sums[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0) {
    for (const double sum : warp_sums) {
      total += sum;
    }
  }
  return total;
}

// ---- The norm ----

constexpr int kNormLoads = 4;  // vectors in flight per thread

int64_t norm_blocks(int64_t count) {
  constexpr int64_t per_block = kThreads * kQuad * kNormLoads;
  return std::clamp(ceil_div(count, per_block), int64_t{1}, kNormBlocks);
}

__device__ void add_squares(const float (&values)[kQuad], double (&sums)[kQuad]) {
#pragma unroll
  for (int k = 0; k < kQuad; ++k) {
    const double value = values[k];
    sums[k] += value * value;
  }
}

__global__ void __launch_bounds__(kThreads)
    square_sums(const float* gradients, int64_t count, double* partials) {
  const int64_t vectors = count / kQuad;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  double sums[kQuad] = {};
  for (; i + (kNormLoads - 1) * stride < vectors; i += kNormLoads * stride) {
    float values[kNormLoads][kQuad];
#pragma unroll
    for (int j = 0; j < kNormLoads; ++j) {
      load_floats<kQuad>(gradients + (i + j * stride) * kQuad, values[j]);
    }
#pragma unroll
    for (int j = 0; j < kNormLoads; ++j) {
      add_squares(values[j], sums);
    }
  }
  for (; i < vectors; i += stride) {
    float values[kQuad];
    load_floats<kQuad>(gradients + i * kQuad, values);
    add_squares(values, sums);
  }
  if (blockIdx.x == 0 && vectors * kQuad + threadIdx.x < count) {
    const double value = gradients[vectors * kQuad + threadIdx.x];
    sums[0] += value * value;
  }
  const double sum = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) finish_norm(const double* partials,
                                                        int blocks,
                                                        double inverse_loss_scale,
                                                        double clip,
                                                        GradientState* state) {
  double sum = 0;
  for (int i = threadIdx.x; i < blocks; i += kThreads) {
    sum += partials[i];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    const double norm = sqrt(sum) * inverse_loss_scale;
    const bool is_finite = isfinite(norm);
    const double clipping = clip > 0 ? fmin(1.0, clip / (norm + 1e-6)) : 1.0;
    state->norm = norm;
    state->scale = is_finite ? static_cast<float>(inverse_loss_scale * clipping) : 0.0f;
    state->is_finite = is_finite;
  }
}

// ---- The updates ----

// What one block works on; chunks shorter than kChunkElements leave their last blocks empty.
struct Slice {
  int64_t first;
  int count;
  int64_t chunk;
  bool has_decay;
  float gradient_scale;
};

__device__ Slice slice_of_block(const UpdateChunk* chunks, const GradientState* state) {
  const int64_t index = blockIdx.x / kChunkSlices;
  const int begin = static_cast<int>(blockIdx.x % kChunkSlices) * kSliceElements;
  const UpdateChunk chunk = chunks[index];
  return {chunk.first + begin,
          min(chunk.count - begin, kSliceElements),
          index,
          chunk.has_decay != 0,
          state->scale};
}

// update.run<kQuad>(slice, at) for whole vectors, run<1> for what remains at the end.
template <typename Update>
__device__ void run_slice(Update& update, const Slice& slice) {
  for (int i = static_cast<int>(threadIdx.x) * kQuad; i < slice.count; i += kThreads * kQuad) {
    if (i + kQuad <= slice.count) {
      update.template run<kQuad>(slice, slice.first + i);
    } else {
      for (int j = i; j < slice.count; ++j) {
        update.template run<1>(slice, slice.first + j);
      }
    }
  }
}

template <typename Update>
__global__ void __launch_bounds__(kThreads)
    update_chunks(Update update, const UpdateChunk* chunks, const GradientState* state) {
  if (state->is_finite == 0) {
    return;
  }
  run_slice(update, slice_of_block(chunks, state));
}

template <int N, typename Copy>
__device__ void store_weights(float* weights, Copy* copy, int64_t at, const float (&w)[N]) {
  store_floats<N>(weights + at, w);
  if (copy != nullptr) {
    store_copy<N>(copy + at, w);
  }
}

// In the updates below everything is loaded before anything is stored, for the compiler cannot
// know that the buffers are apart.

template <typename Copy>
struct AdamUpdate {
  float* weights;
  const float* gradients;
  float* mean;
  float* mean_square;
  Copy* copy;
  float rest1, beta2, rest2, root_correction2, epsilon, rate, keep_with_decay;

  template <int N>
  __device__ void run(const Slice& slice, int64_t at) {
    float w[N], g[N], m[N], v[N];
    load_floats<N>(gradients + at, g);
    load_floats<N>(mean + at, m);
    load_floats<N>(mean_square + at, v);
    load_floats<N>(weights + at, w);
    const float keep = slice.has_decay ? keep_with_decay : 1.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float gradient = g[k] * slice.gradient_scale;
      m[k] += rest1 * (gradient - m[k]);
      v[k] = beta2 * v[k] + rest2 * gradient * gradient;
      const float denominator = sqrtf(v[k]) / root_correction2 + epsilon;
      w[k] = w[k] * keep - rate * m[k] / denominator;
    }
    store_floats<N>(mean + at, m);
    store_floats<N>(mean_square + at, v);
    store_weights<N>(weights, copy, at, w);
  }
};

template <typename Copy>
struct PlainSgdUpdate {
  float* weights;
  const float* gradients;
  Copy* copy;
  float lr, weight_decay;

  template <int N>
  __device__ void run(const Slice& slice, int64_t at) {
    float w[N], g[N];
    load_floats<N>(gradients + at, g);
    load_floats<N>(weights + at, w);
    const float decay = slice.has_decay ? weight_decay : 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      w[k] -= lr * (g[k] * slice.gradient_scale + decay * w[k]);
    }
    store_weights<N>(weights, copy, at, w);
  }
};

template <typename Copy>
struct MomentumUpdate {
  float* weights;
  const float* gradients;
  float* buffer;
  Copy* copy;
  float lr, weight_decay;
  float old_share, fresh, look_ahead;

  template <int N>
  __device__ void run(const Slice& slice, int64_t at) {
    float w[N], g[N], b[N];
    load_floats<N>(gradients + at, g);
    load_floats<N>(buffer + at, b);
    load_floats<N>(weights + at, w);
    const float decay = slice.has_decay ? weight_decay : 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float gradient = g[k] * slice.gradient_scale + decay * w[k];
      b[k] = old_share * b[k] + gradient;
      w[k] -= lr * (fresh * gradient + look_ahead * b[k]);
    }
    store_floats<N>(buffer + at, b);
    store_weights<N>(weights, copy, at, w);
  }
};

struct LambDirection {
  const float* weights;
  const float* gradients;
  float* mean;
  float* mean_square;
  float* update;
  float rest1, beta2, rest2, correction1, correction2, epsilon, weight_decay;
  double weight_squares, update_squares;  // of the thread's elements

  template <int N>
  __device__ void run(const Slice& slice, int64_t at) {
    float w[N], g[N], m[N], v[N], direction[N];
    load_floats<N>(gradients + at, g);
    load_floats<N>(mean + at, m);
    load_floats<N>(mean_square + at, v);
    load_floats<N>(weights + at, w);
    const float decay = slice.has_decay ? weight_decay : 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float gradient = g[k] * slice.gradient_scale;
      m[k] += rest1 * (gradient - m[k]);
      v[k] = beta2 * v[k] + rest2 * gradient * gradient;
      const float adam = (m[k] / correction1) / (sqrtf(v[k] / correction2) + epsilon);
      direction[k] = adam + decay * w[k];
      weight_squares += static_cast<double>(w[k]) * static_cast<double>(w[k]);
      update_squares += static_cast<double>(direction[k]) * static_cast<double>(direction[k]);
    }
    store_floats<N>(mean + at, m);
    store_floats<N>(mean_square + at, v);
    store_floats<N>(update + at, direction);
  }
};

__global__ void __launch_bounds__(kThreads) direct_chunks(LambDirection direction,
                                                          const UpdateChunk* chunks,
                                                          const GradientState* state,
                                                          kernels::LambNorms* norms) {
  if (state->is_finite == 0) {
    return;
  }
  run_slice(direction, slice_of_block(chunks, state));
  const double weight_squares = block_sum(direction.weight_squares);
  const double update_squares = block_sum(direction.update_squares);
  if (threadIdx.x == 0) {
    norms[blockIdx.x] = {weight_squares, update_squares};
  }
}

// One block per parameter.
__global__ void __launch_bounds__(kThreads) set_rates(const LambParameter* parameters,
                                                      const kernels::LambNorms* norms,
                                                      float lr,
                                                      const GradientState* state,
                                                      float* rates) {
  if (state->is_finite == 0) {
    return;
  }
  const LambParameter parameter = parameters[blockIdx.x];
  norms += parameter.first_chunk * kChunkSlices;
  double weight_squares = 0, update_squares = 0;
  for (int64_t i = threadIdx.x; i < parameter.chunk_count * kChunkSlices; i += kThreads) {
    weight_squares += norms[i].weights;
    update_squares += norms[i].update;
  }
  weight_squares = block_sum(weight_squares);
  update_squares = block_sum(update_squares);
  __shared__ float rate;
  if (threadIdx.x == 0) {
    const bool has_ratio = parameter.is_scaled != 0 && weight_squares > 0 && update_squares > 0;
    const double ratio = has_ratio ? sqrt(weight_squares / update_squares) : 1;
    rate = static_cast<float>(static_cast<double>(lr) * ratio);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < parameter.chunk_count; i += kThreads) {
    rates[parameter.first_chunk + i] = rate;
  }
}

template <typename Copy>
struct LambApply {
  float* weights;
  const float* update;
  const float* rates;
  Copy* copy;

  template <int N>
  __device__ void run(const Slice& slice, int64_t at) {
    float w[N], u[N];
    load_floats<N>(update + at, u);
    load_floats<N>(weights + at, w);
    const float rate = rates[slice.chunk];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      w[k] -= rate * u[k];
    }
    store_weights<N>(weights, copy, at, w);
  }
};

template <typename Copy>
__global__ void __launch_bounds__(kThreads)
    convert(const float* weights, Copy* copy, int64_t count) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kQuad;
  if (at + kQuad <= count) {
    float values[kQuad];
    load_floats<kQuad>(weights + at, values);
    store_copy<kQuad>(copy + at, values);
  } else {
    for (int64_t i = at; i < count; ++i) {
      const float value[1] = {weights[i]};
      store_copy<1>(copy + i, value);
    }
  }
}

// Calls launch with the copy as a pointer of its type.
template <typename Launch>
void with_copy(void* copy, Type type, const Launch& launch) {
  switch (copy == nullptr ? Type::Float32 : type) {
    case Type::Float32:
      return launch(static_cast<float*>(copy));
    case Type::BFloat16:
      return launch(static_cast<__nv_bfloat16*>(copy));
    case Type::Float16:
      return launch(static_cast<__half*>(copy));
  }
}

template <typename Work, typename Update>
void launch_update(const Work& work, const Update& update, Stream stream) {
  if (work.chunk_count > 0) {
    const auto blocks = static_cast<unsigned>(work.chunk_count * kChunkSlices);
    update_chunks<<<blocks, kThreads, 0, stream>>>(update, work.chunks, work.state);
    PENSTOCK_CUDA(cudaGetLastError());
  }
}

}  // namespace

void gradient_norm(const GradientNorm& work, Stream stream) {
  const int64_t blocks = norm_blocks(work.count);
  square_sums<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      work.gradients, work.count, work.workspace);
  PENSTOCK_CUDA(cudaGetLastError());
  finish_norm<<<1, kThreads, 0, stream>>>(work.workspace,
                                          static_cast<int>(blocks),
                                          work.inverse_loss_scale,
                                          static_cast<double>(work.clip),
                                          work.state);
  PENSTOCK_CUDA(cudaGetLastError());
}

void adamw_update(const AdamW& work, Stream stream) {
  const kernels::AdamSettings& settings = work.settings;
  with_copy(work.compute_copy, work.copy_type, [&]<typename Copy>(Copy* copy) {
    launch_update(work,
                  AdamUpdate<Copy>{.weights = work.weights,
                                   .gradients = work.gradients,
                                   .mean = work.mean,
                                   .mean_square = work.mean_square,
                                   .copy = copy,
                                   .rest1 = settings.one_minus_beta1,
                                   .beta2 = settings.beta2,
                                   .rest2 = settings.one_minus_beta2,
                                   .root_correction2 = std::sqrt(settings.bias_correction2),
                                   .epsilon = settings.epsilon,
                                   .rate = settings.lr / settings.bias_correction1,
                                   .keep_with_decay = 1.0f - settings.lr * settings.weight_decay},
                  stream);
  });
}

void sgd_update(const Sgd& work, Stream stream) {
  const kernels::SgdSettings& settings = work.settings;
  with_copy(work.compute_copy, work.copy_type, [&]<typename Copy>(Copy* copy) {
    if (settings.momentum == 0.0f) {
      launch_update(work,
                    PlainSgdUpdate<Copy>{.weights = work.weights,
                                         .gradients = work.gradients,
                                         .copy = copy,
                                         .lr = settings.lr,
                                         .weight_decay = settings.weight_decay},
                    stream);
      return;
    }
    PENSTOCK_CHECK(work.momentum_buffer != nullptr, "momentum without a buffer");
    launch_update(work,
                  MomentumUpdate<Copy>{.weights = work.weights,
                                       .gradients = work.gradients,
                                       .buffer = work.momentum_buffer,
                                       .copy = copy,
                                       .lr = settings.lr,
                                       .weight_decay = settings.weight_decay,
                                       .old_share = settings.is_first_step ? 0 : settings.momentum,
                                       .fresh = settings.nesterov ? 1.0f : 0.0f,
                                       .look_ahead = settings.nesterov ? settings.momentum : 1.0f},
                  stream);
  });
}

void lamb_direction(const Lamb& work, Stream stream) {
  if (work.chunk_count == 0) {
    return;
  }
  const kernels::AdamSettings& settings = work.settings;
  const LambDirection direction{.weights = work.weights,
                                .gradients = work.gradients,
                                .mean = work.mean,
                                .mean_square = work.mean_square,
                                .update = work.update,
                                .rest1 = settings.one_minus_beta1,
                                .beta2 = settings.beta2,
                                .rest2 = settings.one_minus_beta2,
                                .correction1 = settings.bias_correction1,
                                .correction2 = settings.bias_correction2,
                                .epsilon = settings.epsilon,
                                .weight_decay = settings.weight_decay,
                                .weight_squares = 0,
                                .update_squares = 0};
  const auto blocks = static_cast<unsigned>(work.chunk_count * kChunkSlices);
  direct_chunks<<<blocks, kThreads, 0, stream>>>(direction, work.chunks, work.state, work.norms);
  PENSTOCK_CUDA(cudaGetLastError());
}

void lamb_ratio(const Lamb& work, Stream stream) {
  if (work.parameter_count == 0) {
    return;
  }
  set_rates<<<static_cast<unsigned>(work.parameter_count), kThreads, 0, stream>>>(
      work.parameters, work.norms, work.settings.lr, work.state, work.rates);
  PENSTOCK_CUDA(cudaGetLastError());
}

void lamb_apply(const Lamb& work, Stream stream) {
  with_copy(work.compute_copy, work.copy_type, [&]<typename Copy>(Copy* copy) {
    launch_update(work, LambApply<Copy>{work.weights, work.update, work.rates, copy}, stream);
  });
}

void copy_weights(const float* weights, void* copy, Type type, int64_t count, Stream stream) {
  if (count == 0) {
    return;
  }
  constexpr int64_t per_block = kThreads * kQuad;
  with_copy(copy, type, [&]<typename Copy>(Copy* to) {
    const auto blocks = static_cast<unsigned>(ceil_div(count, per_block));
    convert<<<blocks, kThreads, 0, stream>>>(weights, to, count);
    PENSTOCK_CUDA(cudaGetLastError());
  });
}

}  // namespace penstock::gpu
