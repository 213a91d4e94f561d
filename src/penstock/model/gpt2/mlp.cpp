#include <ATen/ATen.h>

#include "penstock/model/blocks.h"
#include "penstock/model/gpt2/layer.h"

namespace penstock::model {

namespace {

enum { kNormScale, kNormShift, kInWeight, kInBias, kOutWeight, kOutBias };
enum { kNormed, kMean, kInverseDeviation, kHidden, kActivated };  // Saved::tensors
enum { kOutInput, kOutGradient, kInInput, kInGradient };          // WeightWork::tensors
enum { kKeepAll, kWithoutGelu, kWithoutNorm };                    // save modes; each keeps less

constexpr const char* kGelu = "tanh";  // GPT-2's approximation

class Gpt2Mlp final : public Gpt2Layer {
 public:
  Gpt2Mlp(const Gpt2Shape& shape, int64_t block)
      : Gpt2Layer(cat("block ", block, " mlp"),
                  "mlp",
                  shape,
                  gpt2_mlp_specs(shape, block),
                  {{"all"}, {"without-gelu"}, {"without-gelu-norm"}}) {}

  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];  // [B, T, C]
    Normed normed = norm(x.view({-1, shape().width}), weights);
    const at::Tensor hidden = linear(normed.out, weights[kInWeight], weights[kInBias]);
    const int32_t mode = saved == nullptr ? kWithoutNorm : saved->mode;
    if (mode >= kWithoutNorm) {
      normed.out.reset();
    }
    if (saved != nullptr) {
      saved->tensors = {normed.out, normed.mean, normed.inverse_deviation, hidden, at::Tensor()};
      if (saved->without_output && mode != kKeepAll) {
        return {};
      }
    }
    // Where nothing is kept, the activation takes the place of its input.
    at::Tensor activated = hidden;
    if (saved == nullptr) {
      at::gelu_(activated, kGelu);
    } else {
      activated = at::gelu(hidden, kGelu);
    }
    if (saved != nullptr && mode == kKeepAll) {
      saved->tensors[kActivated] = activated;
    }
    if (saved != nullptr && saved->without_output) {
      return {};
    }
    return {
        add_residual(x, activated, weights[kOutWeight], weights[kOutBias], residual_dropout(pass))};
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

    at::Tensor projected = flat_dropout_backward(dy, pass);
    if (!kept[kActivated].defined()) {
      kept[kActivated] = at::gelu(kept[kHidden], kGelu);
    }
    add_linear_gradients(
        gradients[kOutWeight], gradients[kOutBias], std::move(kept[kActivated]), projected);
    at::Tensor hidden_gradient = gradient_of_hidden(std::move(projected), kept[kHidden], weights);
    kept[kHidden].reset();
    if (!kept[kNormed].defined()) {
      kept[kNormed] = norm(flat, weights).out;
    }
    add_linear_gradients(
        gradients[kInWeight], gradients[kInBias], std::move(kept[kNormed]), hidden_gradient);
    return {gradient_of_input(weights, gradients, flat, kept, std::move(hidden_gradient), dy)};
  }

  // Holds to its end what the whole backward frees on its way: hence another order.
  Tensors backward_input(Weights weights,
                         Gradients gradients,
                         const Tensors& input,
                         Saved saved,
                         const Tensors& output_gradient,
                         const Pass& pass,
                         WeightWork& work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor flat = input[0].view({-1, shape().width});
    const at::Tensor& dy = output_gradient[0];
    Tensors& kept = saved.tensors;

    const at::Tensor projected = flat_dropout_backward(dy, pass);
    const at::Tensor hidden_gradient = gradient_of_hidden(projected, kept[kHidden], weights);
    if (!kept[kActivated].defined()) {
      kept[kActivated] = at::gelu_(kept[kHidden], kGelu);  // the last to read it takes its place
    }
    kept[kHidden].reset();
    const at::Tensor dx = gradient_of_input(weights, gradients, flat, kept, hidden_gradient, dy);
    if (!kept[kNormed].defined()) {
      kept[kNormed] = norm(flat, weights).out;
    }
    work.tensors = {kept[kActivated], projected, kept[kNormed], hidden_gradient};
    return {dx};
  }

  void backward_weight(Weights, Gradients gradients, WeightWork work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensors& kept = work.tensors;
    add_linear_gradients(gradients[kOutWeight],
                         gradients[kOutBias],
                         std::move(kept[kOutInput]),
                         std::move(kept[kOutGradient]));
    add_linear_gradients(gradients[kInWeight],
                         gradients[kInBias],
                         std::move(kept[kInInput]),
                         std::move(kept[kInGradient]));
  }

  LayerSize size_for(const Shapes& inputs,
                     at::ScalarType compute_type,
                     int32_t mode) const override {
    const int64_t rows = inputs[0].sizes[0] * inputs[0].sizes[1];
    const int64_t element = static_cast<int64_t>(c10::elementSize(compute_type));
    // output, hidden (4), norm, activated (4); two floats of norm statistics per row
    const int64_t widths = mode == kKeepAll ? 10 : mode == kWithoutGelu ? 6 : 5;
    return {{{inputs[0].sizes, compute_type}},
            widths * rows * shape().width * element + 2 * rows * 4};
  }

 private:
  static Normed norm(const at::Tensor& flat, Weights weights) {
    return layer_norm(flat, weights[kNormScale], weights[kNormShift]);
  }

  at::Tensor flat_dropout_backward(const at::Tensor& dy, const Pass& pass) const {
    return dropout_backward(dy, residual_dropout(pass)).view({-1, shape().width});
  }

  static at::Tensor gradient_of_hidden(at::Tensor projected,
                                       const at::Tensor& hidden,
                                       Weights weights) {
    at::Tensor gradient = linear_input_gradient(projected, weights[kOutWeight]);
    projected.reset();
    at::gelu_backward_out(gradient, gradient, hidden, kGelu);
    return gradient;
  }

  // Through the first map and the norm, and around them.
  static at::Tensor gradient_of_input(Weights weights,
                                      Gradients gradients,
                                      const at::Tensor& flat,
                                      const Tensors& kept,
                                      at::Tensor hidden_gradient,
                                      const at::Tensor& dy) {
    const at::Tensor normed_gradient = linear_input_gradient(hidden_gradient, weights[kInWeight]);
    hidden_gradient.reset();
    const at::Tensor dx = layer_norm_backward(
        {flat, weights[kNormScale], weights[kNormShift], kept[kMean], kept[kInverseDeviation]},
        normed_gradient,
        gradients[kNormScale],
        gradients[kNormShift]);
    return dx.view(dy.sizes()).add_(dy);
  }

  Dropout residual_dropout(const Pass& pass) const { return {shape().dropout, pass, /*site=*/0}; }
};

}  // namespace

std::unique_ptr<Layer> make_gpt2_mlp(const Gpt2Shape& shape, int64_t block) {
  return std::make_unique<Gpt2Mlp>(shape, block);
}

}  // namespace penstock::model
