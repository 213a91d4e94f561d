#include <ATen/ATen.h>

#include "penstock/model/gpu_table_loss.h"
#include "penstock/model/llama/gpu.h"
#include "penstock/model/llama/gpu_layer.h"

namespace penstock::model {

namespace {

enum { kNorm, kTable };

// Final norm, head and cross-entropy.
class LlamaGpuHead final : public Loss {
 public:
  LlamaGpuHead(const LlamaShape& shape, std::shared_ptr<device::GpuContext> context)
      : shape_(shape),
        context_(context),
        loss_(shape.vocabulary, shape.width, std::move(context)),
        specs_(llama_head_specs(shape)) {
    make_head_table(specs_[kTable]);
  }

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }

  at::Tensor predict(Weights weights, const Tensors& inputs) const override {
    const at::Tensor& input = inputs[0];
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::vector<int64_t> sizes = input.sizes().vec();
    sizes.back() = weights[kTable].size(0);
    return at::mm(norm(weights, input).out, weights[kTable].t()).to(at::kFloat).view(sizes);
  }

  double evaluate(Weights weights, const Tensors& inputs, const Tensors& targets) const override {
    const at::Tensor& input = inputs[0];
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor rows = norm(weights, input).out;
    return loss_.sum({rows, weights[kTable], targets[0]});
  }

  Result backward(Weights weights,
                  Gradients gradients,
                  const Tensors& inputs,
                  const Tensors& targets,
                  double scale) const override {
    const at::Tensor& input = inputs[0];
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor flat = input.view({-1, shape_.width});
    RmsNormed normed = norm(weights, input);
    at::Tensor gradient = at::empty_like(normed.out);
    const double* sum = loss_.backward({normed.out, weights[kTable], targets[0]},
                                       scale,
                                       gradient,
                                       gradients[kTable],
                                       gradients.is_fresh(kTable));
    normed.out.reset();
    const at::Tensor dx = rms_norm_backward_on_gpu(*context_,
                                                   {flat, weights[kNorm], normed.inverse},
                                                   std::move(gradient),
                                                   /*residual=*/{},
                                                   gradients[kNorm]);
    return {.pending_sum = sum, .input_gradients = {dx.view(input.sizes())}};
  }

  // A negative target does not count.
  int64_t count(const Tensors& targets) const override { return count_targets(targets); }

 private:
  RmsNormed norm(Weights weights, const at::Tensor& input) const {
    return rms_norm_on_gpu(
        *context_, input.reshape({-1, shape_.width}), weights[kNorm], shape_.norm_epsilon);
  }

  std::string name_ = "head";
  LlamaShape shape_;
  std::shared_ptr<device::GpuContext> context_;
  GpuTableLoss loss_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

std::unique_ptr<Loss> make_llama_gpu_head(const LlamaShape& shape,
                                          std::shared_ptr<device::GpuContext> context) {
  return std::make_unique<LlamaGpuHead>(shape, std::move(context));
}

}  // namespace penstock::model
