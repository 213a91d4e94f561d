#include <ATen/ATen.h>

#include "penstock/model/blocks.h"
#include "penstock/model/gpt2/layer.h"
#include "penstock/model/table_loss.h"

namespace penstock::model {

namespace {

enum { kNormScale, kNormShift, kTable };

class Gpt2Head final : public Loss {
 public:
  explicit Gpt2Head(const Gpt2Shape& shape) : shape_(shape), specs_(gpt2_head_specs(shape)) {}

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }

  at::Tensor predict(Weights weights, const Tensors& inputs) const override {
    const at::Tensor& input = inputs[0];
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Normed normed = layer_norm(input, weights[kNormScale], weights[kNormShift]);
    return at::matmul(normed.out, weights[kTable].t()).to(at::kFloat);
  }

  double evaluate(Weights weights, const Tensors& inputs, const Tensors& targets) const override {
    const at::Tensor& input = inputs[0];
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Normed normed =
        layer_norm(input.view({-1, shape_.width}), weights[kNormScale], weights[kNormShift]);
    return table_loss({normed.out, weights[kTable], targets[0]});
  }

  Result backward(Weights weights,
                  Gradients gradients,
                  const Tensors& inputs,
                  const Tensors& targets,
                  double scale) const override {
    const at::Tensor& input = inputs[0];
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor flat = input.view({-1, shape_.width});
    const Normed normed = layer_norm(flat, weights[kNormScale], weights[kNormShift]);
    at::Tensor normed_gradient = at::empty_like(normed.out);
    const double sum = table_loss_backward(
        {normed.out, weights[kTable], targets[0]}, scale, normed_gradient, gradients[kTable]);
    const at::Tensor dx = layer_norm_backward(
        {flat, weights[kNormScale], weights[kNormShift], normed.mean, normed.inverse_deviation},
        normed_gradient,
        gradients[kNormScale],
        gradients[kNormShift]);
    return {.sum = sum, .input_gradients = {dx.view(input.sizes())}};
  }

  // A negative target does not count.
  int64_t count(const Tensors& targets) const override { return count_targets(targets); }

 private:
  std::string name_ = "head";
  Gpt2Shape shape_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

std::unique_ptr<Loss> make_gpt2_head(const Gpt2Shape& shape) {
  return std::make_unique<Gpt2Head>(shape);
}

}  // namespace penstock::model
