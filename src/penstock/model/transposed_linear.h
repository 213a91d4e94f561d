// Linear maps without bias whose weight is [out, in], as in Hugging Face's newer checkpoints. All work
// below autograd, on rows: [rows, in] to [rows, out].
#pragma once

#include <ATen/ATen.h>

#include "penstock/model/blocks.h"

namespace penstock::model {

inline at::Tensor apply_matrix(const at::Tensor& x, const at::Tensor& weight) {
  return at::mm(x, weight.t());
}

// residual + x Wᵀ; residual is [B, T, out].
inline at::Tensor add_applied(const at::Tensor& residual,
                              const at::Tensor& x,
                              const at::Tensor& weight) {
  return at::addmm(residual.view({x.size(0), -1}), x, weight.t()).view(residual.sizes());
}

inline at::Tensor matrix_input_gradient(const at::Tensor& dy, const at::Tensor& weight) {
  return at::mm(dy, weight);
}

// weight_gradient += dyᵀ x, in float32.
inline void add_matrix_gradient(at::Tensor& weight_gradient,
                                const at::Tensor& x,
                                const at::Tensor& dy) {
  add_matmul(weight_gradient, dy, x);
}

}  // namespace penstock::model
