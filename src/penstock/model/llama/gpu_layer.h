// What the GPU's Llama layers share. Internal to model/llama/gpu_*.cpp.
#pragma once

#include <ATen/ATen.h>

#include "penstock/memory/gpu_account.h"
#include "penstock/model/gpu_parameters.h"
#include "penstock/model/gpu_rms_norm.h"
#include "penstock/model/gpu_tensors.h"
#include "penstock/model/gpu_transposed_linear.h"
#include "penstock/model/llama/layer.h"

namespace penstock::model {

using memory::gpu_block_bytes;

class LlamaGpuLayer : public LlamaLayer {
 public:
  LlamaGpuLayer(std::string name,
                const char* part,
                const LlamaShape& shape,
                std::vector<ParameterSpec> specs,
                std::vector<SaveMode> modes,
                std::shared_ptr<device::GpuContext> context)
      : LlamaLayer(std::move(name), part, shape, std::move(specs), std::move(modes)),
        linear_(context),
        context_(std::move(context)) {}

 protected:
  const GpuTransposedLinear& linear() const { return linear_; }
  device::GpuContext& context() const { return *context_; }

  RmsNormed norm(const at::Tensor& x, const at::Tensor& scale) const {
    return rms_norm_on_gpu(context(), flat(x), scale, shape().norm_epsilon);
  }

  // The end of a half-block's backward: through its norm, and around it.
  at::Tensor finish_backward(const at::Tensor& x,
                             const at::Tensor& scale,
                             const at::Tensor& inverse,
                             at::Tensor normed_gradient,
                             const at::Tensor& residual_gradient,
                             const at::Tensor& scale_gradient) const {
    const at::Tensor rows = flat(x);
    return rms_norm_backward_on_gpu(context(),
                                    {rows, scale, inverse},
                                    std::move(normed_gradient),
                                    flat(residual_gradient),
                                    scale_gradient)
        .view(x.sizes());
  }

 private:
  GpuTransposedLinear linear_;
  std::shared_ptr<device::GpuContext> context_;
};

}  // namespace penstock::model
