// The arithmetic that hand-written layers share: linear maps, layer norm, keyed dropout, each with
// its gradient. All work below autograd. Matrices are row-major; a weight is [in, out] as in
// GPT-2's checkpoints, which on this kind of processor is also 10 to 15 % faster than [out, in].
#pragma once

#include <ATen/core/Tensor.h>

#include "penstock/model/layer.h"

namespace penstock::model {

// x W + b.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// residual + x W + b, in one buffer.
at::Tensor linear_onto(const at::Tensor& residual,
                       const at::Tensor& x,
                       const at::Tensor& weight,
                       const at::Tensor& bias);

// weight_gradient += xᵀ dy, bias_gradient += column sums of dy; both float32.
void add_linear_gradients(at::Tensor& weight_gradient,
                          at::Tensor& bias_gradient,
                          const at::Tensor& x,
                          const at::Tensor& dy);

// weight_gradient += aᵀ b.
void add_product(at::Tensor& weight_gradient, const at::Tensor& a, const at::Tensor& b);

at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight);  // dy Wᵀ

struct Normed {
  at::Tensor out, mean, inverse_deviation;
};
Normed layer_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift);

struct NormBackward {
  const at::Tensor &x, &scale, &shift, &mean, &inverse_deviation;
};
// Gradient of x; adds those of scale and shift.
at::Tensor layer_norm_backward(const NormBackward& saved,
                               const at::Tensor& dy,
                               at::Tensor& scale_gradient,
                               at::Tensor& shift_gradient);

// x *= 0 or 1/(1 - share); x is [samples, ...], contiguous. `site` tells the dropouts of one layer
// apart. Calling it on a gradient with the same arguments is its backward. Does nothing when the
// pass is no training or share is 0.
void apply_dropout(at::Tensor& x, double share, const Pass& pass, uint32_t site);

}  // namespace penstock::model
