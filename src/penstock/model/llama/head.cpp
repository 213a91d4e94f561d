#include <ATen/ATen.h>

#include "penstock/model/llama/layer.h"
#include "penstock/model/rms_norm.h"
#include "penstock/model/table_loss.h"

namespace penstock::model {

namespace {

enum { kNorm, kTable };

class LlamaHead final : public Loss {
 public:
  explicit LlamaHead(const LlamaShape& shape) : shape_(shape), specs_(llama_head_specs(shape)) {}

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }

  at::Tensor predict(Weights weights, const Tensors& inputs) const override {
    const at::Tensor& input = inputs[0];
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor rows = norm(weights, input).out;
    std::vector<int64_t> sizes = input.sizes().vec();
    sizes.back() = weights[kTable].size(0);
    return at::mm(rows, weights[kTable].t()).to(at::kFloat).view(sizes);
  }

  double evaluate(Weights weights, const Tensors& inputs, const Tensors& targets) const override {
    const at::Tensor& input = inputs[0];
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return table_loss({norm(weights, input).out, weights[kTable], targets[0]});
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
    const double sum = table_loss_backward(
        {normed.out, weights[kTable], targets[0]}, scale, gradient, gradients[kTable]);
    normed.out.reset();
    const at::Tensor dx = rms_norm_backward({flat, weights[kNorm], normed.inverse},
                                            std::move(gradient),
                                            /*residual=*/{},
                                            gradients[kNorm]);
    return {.sum = sum, .input_gradients = {dx.view(input.sizes())}};
  }

  // A negative target does not count.
  int64_t count(const Tensors& targets) const override { return count_targets(targets); }

 private:
  RmsNormed norm(Weights weights, const at::Tensor& input) const {
    return rms_norm(input.reshape({-1, shape_.width}), weights[kNorm], shape_.norm_epsilon);
  }

  std::string name_ = "head";
  LlamaShape shape_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

std::unique_ptr<Loss> make_llama_head(const LlamaShape& shape) {
  return std::make_unique<LlamaHead>(shape);
}

}  // namespace penstock::model
