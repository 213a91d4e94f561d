#include <limits>

#include <ATen/ATen.h>

#include "penstock/model/blocks.h"
#include "penstock/model/gpt2_layer.h"

namespace penstock::model {

namespace {

enum { kNormScale, kNormShift, kQkvWeight, kQkvBias, kOutWeight, kOutBias };
enum { kNormed, kMean, kInverseDeviation, kQkv, kMixed, kStatistics };  // Saved::tensors
enum : uint32_t { kResidualSite, kProbabilitySite };

std::vector<ParameterSpec> attention_specs(const Gpt2Shape& shape, int64_t block) {
  const std::string prefix = cat("transformer.h.", block, ".");
  const int64_t width = shape.width;
  std::vector<ParameterSpec> specs;
  add_gpt2_norm(specs, prefix + "ln_1", width);
  specs.push_back(gpt2_weight(prefix + "attn.c_attn.weight", {width, 3 * width}, kGpt2Deviation));
  specs.push_back(gpt2_bias(prefix + "attn.c_attn.bias", 3 * width));
  specs.push_back(
      gpt2_weight(prefix + "attn.c_proj.weight", {width, width}, gpt2_residual_deviation(shape)));
  specs.push_back(gpt2_bias(prefix + "attn.c_proj.bias", width));
  return specs;
}

// Views of [B, T, 3C] as query, key and value, each [B, H, T, D].
struct Heads {
  at::Tensor query, key, value;
};

Heads split_heads(const at::Tensor& qkv, int64_t heads) {
  const at::Tensor parts =
      qkv.view({qkv.size(0), qkv.size(1), 3, heads, -1}).permute({2, 0, 3, 1, 4});
  return {parts.select(0, 0), parts.select(0, 1), parts.select(0, 2)};
}

// Mixed values [B, H, T, D] and what their backward needs beside q, k, v and themselves.
struct Mixed {
  at::Tensor values, statistics;
};

// Without dropout on the probabilities LibTorch's fused attention serves: it never holds the [T, T]
// matrix, and its statistics are one number per row.
Mixed attend_fused(const Heads& in) {
  auto [values, statistics] = at::_scaled_dot_product_flash_attention_for_cpu(
      in.query, in.key, in.value, /*dropout_p=*/0, /*is_causal=*/true);
  return {values, statistics};
}

Heads attend_fused_backward(const Heads& in, const Mixed& mixed, const at::Tensor& gradient) {
  auto [query, key, value] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(gradient,
                                                               in.query,
                                                               in.key,
                                                               in.value,
                                                               mixed.values,
                                                               mixed.statistics,
                                                               /*dropout_p=*/0,
                                                               /*is_causal=*/true);
  return {query, key, value};
}

double attention_scale(const Heads& in) {
  return 1.0 / std::sqrt(static_cast<double>(in.query.size(3)));
}

// With dropout the probabilities are made, kept, and dropped by the keyed mask; the mask itself is
// drawn again in backward.
Mixed attend_with_dropout(const Heads& in, const Dropout& dropout) {
  const int64_t tokens = in.query.size(2);
  const at::Tensor future =
      at::full({tokens, tokens}, -std::numeric_limits<double>::infinity(), in.query.options())
          .triu_(1);
  at::Tensor scores =
      at::matmul(in.query, in.key.transpose(2, 3)).mul_(attention_scale(in)).add_(future);
  const at::Tensor probabilities = at::softmax(scores, 3);
  at::Tensor dropped = probabilities.clone();
  apply_dropout(dropped, dropout);
  // In the layout of the fused path, so that the heads join without a copy.
  at::Tensor values = at::matmul(dropped, in.value).transpose(1, 2).contiguous().transpose(1, 2);
  return {values, probabilities};
}

Heads attend_with_dropout_backward(const Heads& in,
                                   const Mixed& mixed,
                                   const at::Tensor& gradient,
                                   const Dropout& dropout) {
  at::Tensor dropped = mixed.statistics.clone();
  apply_dropout(dropped, dropout);
  const at::Tensor value = at::matmul(dropped.transpose(2, 3), gradient);
  at::Tensor probability = at::matmul(gradient, in.value.transpose(2, 3));
  apply_dropout(probability, dropout);
  const at::Tensor score =
      at::_softmax_backward_data(probability, mixed.statistics, 3, probability.scalar_type())
          .mul_(attention_scale(in));
  return {at::matmul(score, in.key), at::matmul(score.transpose(2, 3), in.query), value};
}

class Gpt2Attention final : public Gpt2Layer {
 public:
  Gpt2Attention(const Gpt2Shape& shape, int64_t block)
      : Gpt2Layer(cat("block ", block, " attention"), shape, attention_specs(shape, block)) {}

  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];  // [B, T, C]
    const int64_t rows = x.size(0) * x.size(1);
    const int64_t width = shape().width;
    Normed normed = layer_norm(x, weights[kNormScale], weights[kNormShift]);
    const at::Tensor qkv =
        linear(normed.out.view({rows, width}), weights[kQkvWeight], weights[kQkvBias])
            .view({x.size(0), x.size(1), 3 * width});
    if (saved == nullptr) {
      normed = {};
    }
    const Heads heads = split_heads(qkv, shape().heads);
    const Dropout dropout = probability_dropout(pass);
    const Mixed mixed =
        dropout.is_active() ? attend_with_dropout(heads, dropout) : attend_fused(heads);
    const at::Tensor joined = mixed.values.transpose(1, 2).reshape({rows, width});
    const at::Tensor out =
        add_residual(x, joined, weights[kOutWeight], weights[kOutBias], residual_dropout(pass));
    if (saved != nullptr) {
      saved->tensors = {
          normed.out, normed.mean, normed.inverse_deviation, qkv, mixed.values, mixed.statistics};
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
    const at::Tensor& x = input[0];
    const at::Tensor& dy = output_gradient[0];
    const int64_t rows = x.size(0) * x.size(1);
    const int64_t width = shape().width;
    Tensors& kept = saved.tensors;

    at::Tensor projected = dropout_backward(dy, residual_dropout(pass)).view({rows, width});
    add_linear_gradients(gradients[kOutWeight],
                         gradients[kOutBias],
                         kept[kMixed].transpose(1, 2).reshape({rows, width}),
                         projected);
    const at::Tensor mixed_gradient = linear_input_gradient(projected, weights[kOutWeight])
                                          .view({x.size(0), x.size(1), shape().heads, -1})
                                          .transpose(1, 2);
    projected.reset();

    at::Tensor qkv_gradient = at::empty_like(kept[kQkv]);
    {
      const Heads heads = split_heads(kept[kQkv], shape().heads);
      const Mixed mixed{kept[kMixed], kept[kStatistics]};
      const Dropout dropout = probability_dropout(pass);
      const Heads parts = dropout.is_active()
                              ? attend_with_dropout_backward(heads, mixed, mixed_gradient, dropout)
                              : attend_fused_backward(heads, mixed, mixed_gradient);
      Heads target = split_heads(qkv_gradient, shape().heads);
      target.query.copy_(parts.query);
      target.key.copy_(parts.key);
      target.value.copy_(parts.value);
    }
    qkv_gradient = qkv_gradient.view({rows, 3 * width});
    add_linear_gradients(gradients[kQkvWeight],
                         gradients[kQkvBias],
                         kept[kNormed].view({rows, width}),
                         qkv_gradient);
    const at::Tensor normed_gradient =
        linear_input_gradient(qkv_gradient, weights[kQkvWeight]).view(x.sizes());
    at::Tensor dx = layer_norm_backward(
        {x, weights[kNormScale], weights[kNormShift], kept[kMean], kept[kInverseDeviation]},
        normed_gradient,
        gradients[kNormScale],
        gradients[kNormShift]);
    dx.add_(dy);
    return {dx};
  }

  LayerSize size_for(const TensorShape& input, at::ScalarType compute_type) const override {
    const int64_t rows = input.sizes[0] * input.sizes[1];
    const int64_t element = static_cast<int64_t>(c10::elementSize(compute_type));
    const TensorShape output{input.sizes, compute_type};
    // output, norm, qkv, mixed; two floats of norm statistics per row; attention's statistics
    const int64_t activations = 6 * rows * shape().width * element + 2 * rows * 4;
    const int64_t statistics = shape().dropout > 0 ? rows * shape().heads * input.sizes[1] * element
                                                   : rows * shape().heads * 4;
    return {output, activations + statistics};
  }

 private:
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
