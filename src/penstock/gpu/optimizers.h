// Optimizer updates over the flat parameter buffers, one pass over memory each. Formulas as in
// penstock/kernels/optimizers.h. What the gradients are multiplied by, and whether the step is
// taken at all, is decided on the device (GradientState), so nothing waits for the host.
//
// All flat buffers share one layout and are 16-byte aligned. Elements outside the chunks (padding)
// are not written.
#pragma once

#include <cstdint>

#include "penstock/gpu/types.h"
#include "penstock/kernels/optimizers.h"

namespace penstock::gpu {

inline constexpr int64_t kChunkElements = 65536;
// Chunks are spread over this many blocks each.
inline constexpr int64_t kChunkSlices = 8;

// A range of the flat buffers within one parameter.
struct UpdateChunk {
  int64_t first;      // a multiple of 16
  int32_t count;      // at most kChunkElements
  int32_t has_decay;  // weight decay applies
};

// Written by gradient_norm; read by the updates on the same stream and later by the host.
struct GradientState {
  double norm;        // of the true gradients, before clipping
  float scale;        // what gradients are multiplied by: clipping and 1 / loss scale
  int32_t is_finite;  // 0: some gradient is infinite or NaN, and the updates do nothing
};

// The true gradients are gradients[i] * inverse_loss_scale. Squares and sums are in double: the
// norm of finite gradients is finite. Fixed order for a given count, padding (zeros) included.
struct GradientNorm {
  const float* gradients;
  int64_t count;
  float clip;  // 0: none; else scale is inverse_loss_scale * min(1, clip / (norm + 1e-6))
  double inverse_loss_scale;
  double* workspace;
  GradientState* state;
};
// What `workspace` has room for, whatever the count. A number of its own, so that no device changes
// the order of the sum.
inline constexpr int64_t kNormBlocks = 1056;
void gradient_norm(const GradientNorm& work, Stream stream);

// In all updates: chunks and state are in device memory. compute_copy takes the new weights in
// copy_type; null where the weights themselves are computed with. Settings are passed by value, so
// a captured graph repeats them until its nodes are updated.
struct AdamW {
  float* weights;
  const float* gradients;
  float* mean;
  float* mean_square;
  void* compute_copy;
  Type copy_type;
  const UpdateChunk* chunks;
  int64_t chunk_count;
  const GradientState* state;
  kernels::AdamSettings settings;
};
void adamw_update(const AdamW& work, Stream stream);

struct Sgd {
  float* weights;
  const float* gradients;
  float* momentum_buffer;  // null only where settings.momentum is 0
  void* compute_copy;
  Type copy_type;
  const UpdateChunk* chunks;
  int64_t chunk_count;
  const GradientState* state;
  kernels::SgdSettings settings;
};
void sgd_update(const Sgd& work, Stream stream);

// The chunks of one parameter. Where is_scaled, its update gets the length of its weights times lr.
struct LambParameter {
  int64_t first_chunk;
  int32_t chunk_count;
  int32_t is_scaled;
};

// LAMB in three calls: the moments and the direction with its norms, the rate of each parameter,
// the weights.
struct Lamb {
  float* weights;
  const float* gradients;
  float* mean;
  float* mean_square;
  float* update;  // the direction, in the layout of the weights; may be the gradients' buffer
  void* compute_copy;
  Type copy_type;
  const UpdateChunk* chunks;
  int64_t chunk_count;
  const LambParameter* parameters;  // together they hold every chunk once
  int64_t parameter_count;
  kernels::LambNorms* norms;  // chunk_count * kChunkSlices squared norms of slices
  float* rates;               // chunk_count, each the lr times the ratio of its parameter
  const GradientState* state;
  kernels::AdamSettings settings;
};
void lamb_direction(const Lamb& work, Stream stream);
void lamb_ratio(const Lamb& work, Stream stream);
void lamb_apply(const Lamb& work, Stream stream);

// Refreshes a compute copy: copy[i] = weights[i].
void copy_weights(const float* weights, void* copy, Type type, int64_t count, Stream stream);

}  // namespace penstock::gpu
