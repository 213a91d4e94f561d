// The arithmetic of the fused layers on a GPU, on tensors: our kernels, cuBLASLt's GEMMs and
// cuDNN's attention, each with its gradient. The counterpart of blocks.h. Works below autograd, on
// the context's compute stream; all tensors are contiguous. Matrices are row-major; weights are
// [in, out].
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "penstock/device/gpu_context.h"
#include "penstock/model/causal_attention.h"
#include "penstock/model/dropout.h"
#include "penstock/model/gpu_tensors.h"

namespace penstock::model {

class GpuOps {
 public:
  explicit GpuOps(std::shared_ptr<device::GpuContext> context) : context_(std::move(context)) {}

  device::GpuContext& context() const { return *context_; }

  // x W + b, with the residual added where there is one: [M, in], [in, out] -> [M, out].
  at::Tensor linear(const at::Tensor& x,
                    const at::Tensor& weight,
                    const at::Tensor& bias,
                    const at::Tensor& residual = {}) const;

  struct Activated {
    at::Tensor activated, hidden;  // hidden: only where it was asked for
  };
  // gelu(x W + b). Either in the GEMM's epilogue or by a kernel of its own, whichever is faster
  // here; deterministic: always the latter, for then gelu(hidden) gives the same bits again.
  Activated linear_gelu(const at::Tensor& x,
                        const at::Tensor& weight,
                        const at::Tensor& bias,
                        bool keeps_hidden) const;
  at::Tensor gelu(const at::Tensor& hidden) const;

  at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight) const;  // dy Wᵀ

  // The gradient of what went into the GELU before W: (dy Wᵀ) gelu'(hidden); its column sums are
  // added to bias_gradient.
  at::Tensor linear_gelu_input_gradient(const at::Tensor& dy,
                                        const at::Tensor& weight,
                                        const at::Tensor& hidden,
                                        const at::Tensor& bias_gradient) const;

  // weight_gradient += xᵀ dy in float32, inside the GEMM; or = where it overwrites. x is [M, in], dy
  // [M, out].
  void add_weight_gradient(const at::Tensor& weight_gradient,
                           const at::Tensor& x,
                           const at::Tensor& dy,
                           bool overwrites) const;
  void add_bias_gradient(const at::Tensor& bias_gradient, const at::Tensor& dy) const;

  struct Normed {
    at::Tensor out, mean, inverse_deviation;
  };
  Normed norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) const;

  struct NormBackward {
    const at::Tensor &x, &scale, &mean, &inverse_deviation;
  };
  struct NormGradients {
    const at::Tensor &scale, &shift;
    at::Tensor dx_column_sums = {};  // where it is defined, gets the column sums of dx
  };
  // dx = residual_gradient + the norm's gradient; takes dy's place. residual_gradient may be
  // undefined.
  at::Tensor norm_backward(const NormBackward& saved,
                           at::Tensor dy,
                           const at::Tensor& residual_gradient,
                           const NormGradients& gradients) const;

  // From queries, keys and values side by side, [B, T, features], to the mixed values [B T, C] and
  // what backward needs beside them.
  struct Mixed {
    at::Tensor values, statistics;
  };
  Mixed attend(const at::Tensor& qkv, const HeadCounts& heads, const Dropout& dropout) const;
  at::Tensor attend_backward(at::Tensor qkv,
                             Mixed mixed,
                             at::Tensor values_gradient,
                             const HeadCounts& heads,
                             const Dropout& dropout) const;  // [B T, features]
  // Whether there are statistics of an input of this shape, [B, T, features]: one number for each
  // row and head.
  static bool has_statistics(const TensorShape& qkv, const HeadCounts& heads, bool has_dropout);

 private:
  std::shared_ptr<device::GpuContext> context_;
};

}  // namespace penstock::model
