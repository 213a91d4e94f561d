// Optimizer updates over flat float32 ranges, one pass each: everything an element needs is read
// once and written once. Formulas as in PyTorch's optimizers, so that runs can be compared.
#pragma once

#include <cstdint>

namespace penstock::kernels {

// Sum of squares, in double. Fixed order for a given range.
double sum_of_squares(const float* values, int64_t count);

// A range of parameters with all that belongs to it. Gradients are multiplied by gradient_scale
// (clipping) on the way.
struct UpdateRange {
  float* weights;
  const float* gradients;
  int64_t count;
  float gradient_scale;
};

struct AdamSettings {
  float lr, beta1, beta2, epsilon, weight_decay;
  float one_minus_beta1, one_minus_beta2;  // from the exact betas: 1 - 0.9999f has few digits
  float bias_correction1;                  // 1 - beta1^t
  float bias_correction2;                  // 1 - beta2^t
};
void adamw_update(const UpdateRange& range,
                  float* mean,
                  float* mean_square,
                  const AdamSettings& settings);

struct SgdSettings {
  float lr, momentum, weight_decay;
  bool nesterov;
  bool is_first_step;  // momentum starts as the first gradient
};
void sgd_update(const UpdateRange& range, float* momentum_buffer, const SgdSettings& settings);

// LAMB in two passes, for the trust ratio of a whole tensor stands between them. The first updates
// the moments, overwrites `update` with the Adam direction plus weight decay, and returns the
// squared norms.
struct LambNorms {
  double weights, update;
};
LambNorms lamb_direction(const UpdateRange& range,
                         float* mean,
                         float* mean_square,
                         float* update,
                         const AdamSettings& settings);
void lamb_apply(float* weights, const float* update, int64_t count, float rate);

}  // namespace penstock::kernels
