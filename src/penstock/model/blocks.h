// The arithmetic that hand-written layers share: linear maps, residuals, layer norm, each with
// its gradient. All work below autograd. Matrices are row-major; a weight is [in, out], as checkpoints of
// some families have it, which on this kind of processor is also 10 to 15 % faster than [out, in].
#pragma once

#include <ATen/core/Tensor.h>

#include "penstock/model/dropout.h"

namespace penstock::model {

// x W + b.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// residual + dropout(x W + b): the end of a half-block. residual is [B, T, C], x is [B T, in].
at::Tensor add_residual(const at::Tensor& residual,
                        const at::Tensor& x,
                        const at::Tensor& weight,
                        const at::Tensor& bias,
                        const Dropout& dropout);

// weight_gradient += xᵀ dy, bias_gradient += column sums of dy; both float32. What is moved in is
// free on return.
void add_linear_gradients(at::Tensor& weight_gradient,
                          at::Tensor& bias_gradient,
                          at::Tensor x,
                          at::Tensor dy);

// weight_gradient += aᵀ b.
void add_matmul(at::Tensor& weight_gradient, const at::Tensor& a, const at::Tensor& b);

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

}  // namespace penstock::model
