#include "penstock/kernels/optimizers.h"

#include <algorithm>
#include <cmath>

#include "penstock/kernels/cpu.h"

namespace penstock::kernels {

namespace {
constexpr int kLanes = 16;
}

PENSTOCK_CPU_CLONES double sum_of_squares(const float* values, int64_t count) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  double total = 0;
  for (; i < count; ++i) {
    total += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  for (const double lane : lanes) {
    total += lane;
  }
  return total;
}

PENSTOCK_CPU_CLONES void adamw_update(const UpdateRange& range,
                                      float* mean,
                                      float* mean_square,
                                      const AdamSettings& settings) {
  const auto [lr, beta1, beta2, epsilon, weight_decay, rest1, rest2, correction1, correction2] =
      settings;
  float* __restrict weights = range.weights;
  const float* __restrict gradients = range.gradients;
  float* __restrict m = mean;
  float* __restrict v = mean_square;
  const float keep = 1.0f - lr * weight_decay;
  const float rate = lr / correction1;
  const float root_correction2 = std::sqrt(correction2);
  for (int64_t i = 0; i < range.count; ++i) {
    const float gradient = gradients[i] * range.gradient_scale;
    m[i] += rest1 * (gradient - m[i]);
    v[i] = beta2 * v[i] + rest2 * gradient * gradient;
    const float denominator = std::sqrt(v[i]) / root_correction2 + epsilon;
    weights[i] = weights[i] * keep - rate * m[i] / denominator;
  }
}

PENSTOCK_CPU_CLONES void sgd_update(const UpdateRange& range,
                                    float* momentum_buffer,
                                    const SgdSettings& settings) {
  const auto [lr, momentum, weight_decay, nesterov, is_first_step] = settings;
  float* __restrict weights = range.weights;
  const float* __restrict gradients = range.gradients;
  float* __restrict buffer = momentum_buffer;
  if (momentum == 0.0f) {
    for (int64_t i = 0; i < range.count; ++i) {
      weights[i] -= lr * (gradients[i] * range.gradient_scale + weight_decay * weights[i]);
    }
    return;
  }
  const float old_share = is_first_step ? 0.0f : momentum;
  const float look_ahead = nesterov ? momentum : 1.0f;
  const float fresh = nesterov ? 1.0f : 0.0f;
  for (int64_t i = 0; i < range.count; ++i) {
    const float gradient = gradients[i] * range.gradient_scale + weight_decay * weights[i];
    buffer[i] = old_share * buffer[i] + gradient;
    weights[i] -= lr * (fresh * gradient + look_ahead * buffer[i]);
  }
}

PENSTOCK_CPU_CLONES LambNorms lamb_direction(const UpdateRange& range,
                                             float* mean,
                                             float* mean_square,
                                             float* update,
                                             const AdamSettings& settings) {
  const auto [lr, beta1, beta2, epsilon, weight_decay, rest1, rest2, correction1, correction2] =
      settings;
  const float* __restrict weights = range.weights;
  const float* __restrict gradients = range.gradients;
  float* __restrict m = mean;
  float* __restrict v = mean_square;
  float* __restrict direction = update;
  for (int64_t i = 0; i < range.count; ++i) {
    const float gradient = gradients[i] * range.gradient_scale;
    m[i] += rest1 * (gradient - m[i]);
    v[i] = beta2 * v[i] + rest2 * gradient * gradient;
    const float adam = (m[i] / correction1) / (std::sqrt(v[i] / correction2) + epsilon);
    direction[i] = adam + weight_decay * weights[i];
  }
  return {sum_of_squares(weights, range.count), sum_of_squares(direction, range.count)};
}

PENSTOCK_CPU_CLONES void lamb_apply(float* weights,
                                    const float* update,
                                    int64_t count,
                                    float rate) {
  for (int64_t i = 0; i < count; ++i) {
    weights[i] -= rate * update[i];
  }
}

}  // namespace penstock::kernels
