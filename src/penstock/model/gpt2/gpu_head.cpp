#include <ATen/ATen.h>

#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/gpt2/gpu_layer.h"
#include "penstock/model/gpu_table_loss.h"

namespace penstock::model {

namespace {

enum { kNormScale, kNormShift, kTable };

// Final norm, head and cross-entropy.
class GpuHead final : public Loss {
 public:
  GpuHead(const Gpt2Shape& shape, std::shared_ptr<device::GpuContext> context)
      : shape_(shape),
        ops_(context),
        loss_(shape.vocabulary, shape.width, std::move(context)),
        specs_(with_overwritten_gradients(gpt2_head_specs(shape))) {
    make_head_table(specs_[kTable]);
  }

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }

  at::Tensor predict(Weights weights, const Tensors& inputs) const override {
    const at::Tensor& input = inputs[0];
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor normed = ops_.norm(input, weights[kNormScale], weights[kNormShift]).out;
    return at::matmul(normed, weights[kTable].t()).to(at::kFloat);
  }

  double evaluate(Weights weights, const Tensors& inputs, const Tensors& targets) const override {
    const at::Tensor& input = inputs[0];
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor normed =
        ops_.norm(input.view({-1, shape_.width}), weights[kNormScale], weights[kNormShift]).out;
    return loss_.sum({normed, weights[kTable], targets[0]});
  }

  Result backward(Weights weights,
                  Gradients gradients,
                  const Tensors& inputs,
                  const Tensors& targets,
                  double scale) const override {
    const at::Tensor& input = inputs[0];
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor flat = input.view({-1, shape_.width});
    const GpuOps::Normed normed = ops_.norm(flat, weights[kNormScale], weights[kNormShift]);
    at::Tensor normed_gradient = at::empty_like(normed.out);
    const double* sum = loss_.backward({normed.out, weights[kTable], targets[0]},
                                       scale,
                                       normed_gradient,
                                       gradients[kTable],
                                       gradients.is_fresh(kTable));
    const at::Tensor dx =
        ops_.norm_backward({flat, weights[kNormScale], normed.mean, normed.inverse_deviation},
                           std::move(normed_gradient),
                           /*residual_gradient=*/{},
                           {gradients[kNormScale], gradients[kNormShift]});
    return {.pending_sum = sum, .input_gradients = {dx.view(input.sizes())}};
  }

  // A negative target does not count.
  int64_t count(const Tensors& targets) const override { return count_targets(targets); }

 private:
  std::string name_ = "head";
  Gpt2Shape shape_;
  GpuOps ops_;
  GpuTableLoss loss_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

std::unique_ptr<Loss> make_gpu_head(const Gpt2Shape& shape,
                                    std::shared_ptr<device::GpuContext> context) {
  return std::make_unique<GpuHead>(shape, std::move(context));
}

}  // namespace penstock::model
