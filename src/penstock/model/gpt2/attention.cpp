#include <ATen/ATen.h>

#include "penstock/model/blocks.h"
#include "penstock/model/causal_attention.h"
#include "penstock/model/gpt2/layer.h"

namespace penstock::model {

namespace {

enum { kNormScale, kNormShift, kQkvWeight, kQkvBias, kOutWeight, kOutBias };
enum { kNormed, kMean, kInverseDeviation, kQkv, kMixed, kStatistics };  // Saved::tensors
enum { kOutInput, kOutGradient, kQkvInput, kQkvGradient };              // WeightWork::tensors
// Save modes; each keeps less.
enum { kKeepAll, kWithoutNorm, kWithoutProbabilities };
enum : uint32_t { kResidualSite, kProbabilitySite };

// The probabilities are large where dropout makes them necessary, so one save mode does without
// them.
std::vector<SaveMode> attention_modes(const Gpt2Shape& shape) {
  std::vector<SaveMode> modes{{"all"}, {"without-norm"}};
  if (shape.dropout > 0) {
    modes.push_back({"without-norm-probabilities"});
  }
  return modes;
}

class Gpt2Attention final : public Gpt2Layer {
 public:
  Gpt2Attention(const Gpt2Shape& shape, int64_t block)
      : Gpt2Layer(cat("block ", block, " attention"),
                  "attention",
                  shape,
                  gpt2_attention_specs(shape, block),
                  attention_modes(shape)) {}

  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];  // [B, T, C]
    const int64_t width = shape().width;
    const int32_t mode = saved == nullptr ? kWithoutProbabilities : saved->mode;
    Normed normed = norm(x, weights);
    at::Tensor qkv = linear(normed.out.view({-1, width}), weights[kQkvWeight], weights[kQkvBias])
                         .view({x.size(0), x.size(1), 3 * width});
    if (mode >= kWithoutNorm) {
      normed.out.reset();
    }
    const MixedHeads mixed =
        attend(qkv, shape().heads, probability_dropout(pass), mode < kWithoutProbabilities);
    if (saved != nullptr) {
      saved->tensors = {
          normed.out, normed.mean, normed.inverse_deviation, qkv, mixed.values, mixed.statistics};
      if (saved->without_output) {
        return {};
      }
    }
    qkv.reset();
    return {add_residual(
        x, mixed.values, weights[kOutWeight], weights[kOutBias], residual_dropout(pass))};
  }

  Tensors backward(Weights weights,
                   Gradients gradients,
                   const Tensors& input,
                   Saved saved,
                   const Tensors& output_gradient,
                   const Pass& pass) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];
    const at::Tensor& dy = output_gradient[0];
    Tensors& kept = saved.tensors;

    at::Tensor projected = flat_dropout_backward(dy, pass);
    add_linear_gradients(gradients[kOutWeight], gradients[kOutBias], kept[kMixed], projected);
    at::Tensor qkv_gradient =
        gradient_of_qkv(weights, kept, std::move(kept[kMixed]), std::move(projected), pass);
    if (!kept[kNormed].defined()) {
      kept[kNormed] = norm(x, weights).out;
    }
    add_linear_gradients(
        gradients[kQkvWeight], gradients[kQkvBias], flat(kept[kNormed]), qkv_gradient);
    kept[kNormed].reset();
    return {gradient_of_input(weights, gradients, x, kept, std::move(qkv_gradient), dy)};
  }

  Tensors backward_input(Weights weights,
                         Gradients gradients,
                         const Tensors& input,
                         Saved saved,
                         const Tensors& output_gradient,
                         const Pass& pass,
                         WeightWork& work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];
    const at::Tensor& dy = output_gradient[0];
    Tensors& kept = saved.tensors;

    const at::Tensor projected = flat_dropout_backward(dy, pass);
    const at::Tensor qkv_gradient = gradient_of_qkv(weights, kept, kept[kMixed], projected, pass);
    const at::Tensor dx = gradient_of_input(weights, gradients, x, kept, qkv_gradient, dy);
    if (!kept[kNormed].defined()) {
      kept[kNormed] = norm(x, weights).out;
    }
    work.tensors = {kept[kMixed], projected, flat(kept[kNormed]), qkv_gradient};
    return {dx};
  }

  void backward_weight(Weights, Gradients gradients, WeightWork work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensors& kept = work.tensors;
    add_linear_gradients(gradients[kOutWeight],
                         gradients[kOutBias],
                         std::move(kept[kOutInput]),
                         std::move(kept[kOutGradient]));
    add_linear_gradients(gradients[kQkvWeight],
                         gradients[kQkvBias],
                         std::move(kept[kQkvInput]),
                         std::move(kept[kQkvGradient]));
  }

  LayerSize size_for(const Shapes& inputs,
                     at::ScalarType compute_type,
                     int32_t mode) const override {
    const int64_t rows = inputs[0].sizes[0] * inputs[0].sizes[1];
    const int64_t element = static_cast<int64_t>(c10::elementSize(compute_type));
    // output, qkv (3), mixed, norm; two floats of norm statistics per row; attention's statistics
    const int64_t widths = mode == kKeepAll ? 6 : 5;
    int64_t statistics = rows * shape().heads * 4;
    if (shape().dropout > 0) {
      statistics =
          mode < kWithoutProbabilities ? rows * shape().heads * inputs[0].sizes[1] * element : 0;
    }
    return {{{inputs[0].sizes, compute_type}},
            widths * rows * shape().width * element + 2 * rows * 4 + statistics};
  }

 private:
  static Normed norm(const at::Tensor& x, Weights weights) {
    return layer_norm(x, weights[kNormScale], weights[kNormShift]);
  }

  at::Tensor flat(const at::Tensor& x) const { return x.view({-1, shape().width}); }

  at::Tensor flat_dropout_backward(const at::Tensor& dy, const Pass& pass) const {
    return flat(dropout_backward(dy, residual_dropout(pass)));
  }

  at::Tensor gradient_of_qkv(Weights weights,
                             Tensors& kept,
                             at::Tensor mixed,
                             at::Tensor projected,
                             const Pass& pass) const {
    at::Tensor mixed_gradient = linear_input_gradient(projected, weights[kOutWeight]);
    projected.reset();
    return attend_backward(std::move(kept[kQkv]),
                           {std::move(mixed), std::move(kept[kStatistics])},
                           std::move(mixed_gradient),
                           shape().heads,
                           probability_dropout(pass));
  }

  // Through the first map and the norm, and around them.
  static at::Tensor gradient_of_input(Weights weights,
                                      Gradients gradients,
                                      const at::Tensor& x,
                                      const Tensors& kept,
                                      at::Tensor qkv_gradient,
                                      const at::Tensor& dy) {
    const at::Tensor normed_gradient =
        linear_input_gradient(qkv_gradient, weights[kQkvWeight]).view(x.sizes());
    qkv_gradient.reset();
    at::Tensor dx = layer_norm_backward(
        {x, weights[kNormScale], weights[kNormShift], kept[kMean], kept[kInverseDeviation]},
        normed_gradient,
        gradients[kNormScale],
        gradients[kNormShift]);
    return dx.add_(dy);
  }

  Dropout residual_dropout(const Pass& pass) const {
    return {shape().dropout, pass, kResidualSite};
  }
  Dropout probability_dropout(const Pass& pass) const {
    return {shape().dropout, pass, kProbabilitySite};
  }
};

}  // namespace

std::unique_ptr<Layer> make_gpt2_attention(const Gpt2Shape& shape, int64_t block) {
  return std::make_unique<Gpt2Attention>(shape, block);
}

}  // namespace penstock::model
