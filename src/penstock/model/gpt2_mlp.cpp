#include <ATen/ATen.h>

#include "penstock/model/blocks.h"
#include "penstock/model/gpt2_layer.h"

namespace penstock::model {

namespace {

enum { kNormScale, kNormShift, kInWeight, kInBias, kOutWeight, kOutBias };
enum { kNormed, kMean, kInverseDeviation, kHidden, kActivated };  // Saved::tensors

constexpr const char* kGelu = "tanh";  // GPT-2's approximation

std::vector<ParameterSpec> mlp_specs(const Gpt2Shape& shape, int64_t block) {
  const std::string prefix = cat("transformer.h.", block, ".");
  const int64_t width = shape.width;
  std::vector<ParameterSpec> specs;
  add_gpt2_norm(specs, prefix + "ln_2", width);
  specs.push_back(gpt2_weight(prefix + "mlp.c_fc.weight", {width, 4 * width}, kGpt2Deviation));
  specs.push_back(gpt2_bias(prefix + "mlp.c_fc.bias", 4 * width));
  specs.push_back(gpt2_weight(
      prefix + "mlp.c_proj.weight", {4 * width, width}, gpt2_residual_deviation(shape)));
  specs.push_back(gpt2_bias(prefix + "mlp.c_proj.bias", width));
  return specs;
}

class Gpt2Mlp final : public Gpt2Layer {
 public:
  Gpt2Mlp(const Gpt2Shape& shape, int64_t block)
      : Gpt2Layer(cat("block ", block, " mlp"), shape, mlp_specs(shape, block)) {}

  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];  // [B, T, C]
    const at::Tensor flat = x.view({-1, shape().width});
    Normed normed = layer_norm(flat, weights[kNormScale], weights[kNormShift]);
    at::Tensor hidden = linear(normed.out, weights[kInWeight], weights[kInBias]);
    at::Tensor activated;
    if (saved == nullptr) {
      normed = {};
      activated = at::gelu_(hidden, kGelu);
    } else {
      activated = at::gelu(hidden, kGelu);
    }
    const at::Tensor out =
        add_residual(x, activated, weights[kOutWeight], weights[kOutBias], residual_dropout(pass));
    if (saved != nullptr) {
      saved->tensors = {normed.out, normed.mean, normed.inverse_deviation, hidden, activated};
    }
    return {out};
  }

  Tensors backward(Weights weights,
                   Gradients gradients,
                   const Tensors& input,
                   Saved saved,
                   const Tensors& output_gradient,
                   const Pass& pass) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor flat = input[0].view({-1, shape().width});
    const at::Tensor& dy = output_gradient[0];
    Tensors& kept = saved.tensors;

    at::Tensor projected = dropout_backward(dy, residual_dropout(pass)).view({-1, shape().width});
    add_linear_gradients(gradients[kOutWeight], gradients[kOutBias], kept[kActivated], projected);
    kept[kActivated].reset();
    at::Tensor hidden_gradient = linear_input_gradient(projected, weights[kOutWeight]);
    projected.reset();
    at::gelu_backward_out(hidden_gradient, hidden_gradient, kept[kHidden], kGelu);
    kept[kHidden].reset();
    add_linear_gradients(gradients[kInWeight], gradients[kInBias], kept[kNormed], hidden_gradient);
    const at::Tensor normed_gradient = linear_input_gradient(hidden_gradient, weights[kInWeight]);
    hidden_gradient.reset();
    at::Tensor dx = layer_norm_backward(
        {flat, weights[kNormScale], weights[kNormShift], kept[kMean], kept[kInverseDeviation]},
        normed_gradient,
        gradients[kNormScale],
        gradients[kNormShift]);
    dx = dx.view(input[0].sizes());
    dx.add_(dy);
    return {dx};
  }

  LayerSize size_for(const TensorShape& input, at::ScalarType compute_type) const override {
    const int64_t rows = input.sizes[0] * input.sizes[1];
    const int64_t element = static_cast<int64_t>(c10::elementSize(compute_type));
    // output, norm, hidden (4), activated (4); two floats of norm statistics per row
    return {{input.sizes, compute_type}, 10 * rows * shape().width * element + 2 * rows * 4};
  }

 private:
  Dropout residual_dropout(const Pass& pass) const { return {shape().dropout, pass, /*site=*/0}; }
};

}  // namespace

std::unique_ptr<Layer> make_gpt2_mlp(const Gpt2Shape& shape, int64_t block) {
  return std::make_unique<Gpt2Mlp>(shape, block);
}

}  // namespace penstock::model
