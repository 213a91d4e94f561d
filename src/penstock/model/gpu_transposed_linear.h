// Linear maps without bias whose weight is [out, in], on a GPU: the counterpart of
// transposed_linear.h. Rows may be columns of a wider matrix. Works below autograd, on the context's
// compute stream.
#pragma once

#include <ATen/core/Tensor.h>

#include "penstock/device/gpu_context.h"

namespace penstock::model {

class GpuTransposedLinear {
 public:
  explicit GpuTransposedLinear(std::shared_ptr<device::GpuContext> context)
      : context_(std::move(context)) {}

  // out = x Wᵀ.
  void apply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) const;
  at::Tensor apply(const at::Tensor& x, const at::Tensor& weight) const;

  // residual + x Wᵀ.
  at::Tensor add_applied(const at::Tensor& residual,
                         const at::Tensor& x,
                         const at::Tensor& weight) const;

  at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& weight) const;
  // The same, added to `gradient`.
  void add_input_gradient(const at::Tensor& gradient,
                          const at::Tensor& dy,
                          const at::Tensor& weight) const;

  // weight_gradient += dyᵀ x in float32, inside the GEMM; or = where it overwrites.
  void add_weight_gradient(const at::Tensor& weight_gradient,
                           const at::Tensor& x,
                           const at::Tensor& dy,
                           bool overwrites) const;

 private:
  std::shared_ptr<device::GpuContext> context_;
};

}  // namespace penstock::model
