// What the GPU's GPT-2 layers share. Internal to model/gpt2/gpu_*.cpp.
#pragma once

#include <ATen/ATen.h>

#include "penstock/memory/gpu_account.h"
#include "penstock/model/gpt2/layer.h"
#include "penstock/model/gpu_ops.h"
#include "penstock/model/gpu_parameters.h"

namespace penstock::model {

using memory::gpu_block_bytes;

class Gpt2GpuLayer : public Gpt2Layer {
 public:
  Gpt2GpuLayer(std::string name,
               const char* part,
               const Gpt2Shape& shape,
               std::vector<ParameterSpec> specs,
               std::vector<SaveMode> modes,
               std::shared_ptr<device::GpuContext> context)
      : Gpt2Layer(std::move(name), part, shape, std::move(specs), std::move(modes)),
        ops_(std::move(context)) {}

  // The column sums of finish_backward.
  std::vector<TensorShape> beside_gradient() const override {
    return {{{shape().width}, at::kFloat}};
  }

 protected:
  const GpuOps& ops() const { return ops_; }

  // The gradient of a half-block's output, as this kind of layer hands it on: with its column sums,
  // which the norm's backward has for next to nothing, and which are the gradient of the bias that
  // the layer below ends with. Who has them not (the loss, a test) gives the gradient alone.
  void add_end_bias_gradient(const at::Tensor& bias_gradient,
                             const Tensors& output_gradient,
                             const at::Tensor& projected) const {
    const bool has_sums = output_gradient.size() > 1 && shape().dropout == 0;
    if (has_sums) {
      at::Tensor(bias_gradient).add_(output_gradient[1]);
    } else {
      ops_.add_bias_gradient(bias_gradient, projected);
    }
  }

  // The end of a half-block's backward: through its norm, and around it.
  Tensors finish_backward(const GpuOps::NormBackward& saved,
                          at::Tensor normed_gradient,
                          const at::Tensor& residual_gradient,
                          const at::Tensor& scale_gradient,
                          const at::Tensor& shift_gradient) const {
    const at::Tensor sums = at::zeros({shape().width}, saved.x.options().dtype(at::kFloat));
    at::Tensor dx = ops_.norm_backward(saved,
                                       std::move(normed_gradient),
                                       residual_gradient,
                                       {scale_gradient, shift_gradient, sums});
    return {dx, sums};
  }

 private:
  GpuOps ops_;
};

}  // namespace penstock::model
