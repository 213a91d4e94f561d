#include <ATen/ATen.h>

#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/gpt2/gpu_layer.h"

namespace penstock::model {

namespace {

enum { kNormScale, kNormShift, kQkvWeight, kQkvBias, kOutWeight, kOutBias };
enum { kNormed, kMean, kInverseDeviation, kQkv, kMixed, kStatistics };  // Saved::tensors
// Save modes; each keeps less. The last keeps the mixed values and attention's statistics alone:
// norm and projection are recomputed in backward, attention itself is not.
enum { kKeepAll, kWithoutNorm, kStatisticsOnly };
enum : uint32_t { kResidualSite, kProbabilitySite };

class GpuAttention final : public Gpt2GpuLayer {
 public:
  GpuAttention(const Gpt2Shape& shape, int64_t block, std::shared_ptr<device::GpuContext> context)
      : Gpt2GpuLayer(cat("block ", block, " attention"),
                     "attention",
                     shape,
                     with_overwritten_gradients(gpt2_attention_specs(shape, block)),
                     {{"all"}, {"without-norm"}, {"statistics"}},
                     std::move(context)) {}

  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];  // [B, T, C]
    const at::Tensor rows = x.view({-1, shape().width});
    const int32_t mode = saved == nullptr ? kStatisticsOnly : saved->mode;
    GpuOps::Normed normed = ops().norm(rows, weights[kNormScale], weights[kNormShift]);
    at::Tensor qkv = project(normed.out, x, weights);
    if (mode >= kWithoutNorm) {
      normed.out.reset();
    }
    GpuOps::Mixed mixed = ops().attend(qkv, heads(), probability_dropout(pass));
    if (mode >= kStatisticsOnly) {
      qkv.reset();
    }
    if (saved != nullptr) {
      saved->tensors = {
          normed.out, normed.mean, normed.inverse_deviation, qkv, mixed.values, mixed.statistics};
      if (saved->without_output) {
        return {};
      }
    }
    const Dropout dropout = residual_dropout(pass);
    if (!dropout.is_active()) {
      return {
          ops().linear(mixed.values, weights[kOutWeight], weights[kOutBias], rows).view(x.sizes())};
    }
    at::Tensor out =
        ops().linear(mixed.values, weights[kOutWeight], weights[kOutBias]).view(x.sizes());
    apply_dropout(out, dropout);
    return {out.add_(x)};
  }

  Tensors backward(Weights weights,
                   Gradients gradients,
                   const Tensors& input,
                   Saved saved,
                   const Tensors& output_gradient,
                   const Pass& pass) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];
    const at::Tensor rows = x.view({-1, shape().width});
    const at::Tensor& dy = output_gradient[0];
    Tensors& kept = saved.tensors;

    at::Tensor projected = dropout_backward(dy, residual_dropout(pass)).view({-1, shape().width});
    ops().add_weight_gradient(
        gradients[kOutWeight], kept[kMixed], projected, gradients.is_fresh(kOutWeight));
    add_end_bias_gradient(gradients[kOutBias], output_gradient, projected);
    at::Tensor mixed_gradient = ops().linear_input_gradient(projected, weights[kOutWeight]);
    projected.reset();
    if (!kept[kNormed].defined()) {
      kept[kNormed] = ops().norm(rows, weights[kNormScale], weights[kNormShift]).out;
    }
    if (!kept[kQkv].defined()) {
      kept[kQkv] = project(kept[kNormed], x, weights);
    }
    at::Tensor qkv_gradient =
        ops().attend_backward(std::move(kept[kQkv]),
                              {std::move(kept[kMixed]), std::move(kept[kStatistics])},
                              std::move(mixed_gradient),
                              heads(),
                              probability_dropout(pass));
    ops().add_weight_gradient(
        gradients[kQkvWeight], kept[kNormed], qkv_gradient, gradients.is_fresh(kQkvWeight));
    kept[kNormed].reset();
    ops().add_bias_gradient(gradients[kQkvBias], qkv_gradient);
    at::Tensor normed_gradient = ops().linear_input_gradient(qkv_gradient, weights[kQkvWeight]);
    qkv_gradient.reset();
    return finish_backward({x, weights[kNormScale], kept[kMean], kept[kInverseDeviation]},
                           std::move(normed_gradient),
                           dy,
                           gradients[kNormScale],
                           gradients[kNormShift]);
  }

  LayerSize size_for(const Shapes& inputs,
                     at::ScalarType compute_type,
                     int32_t mode) const override {
    const int64_t rows = inputs[0].sizes[0] * inputs[0].sizes[1];
    const int64_t element = static_cast<int64_t>(c10::elementSize(compute_type));
    const int64_t one = gpu_block_bytes(rows * shape().width * element);
    // output and mixed values; qkv; norm; two floats of norm statistics per row; attention's
    int64_t kept = 2 * one + 2 * gpu_block_bytes(rows * 4);
    kept += mode < kStatisticsOnly ? gpu_block_bytes(3 * rows * shape().width * element) : 0;
    kept += mode == kKeepAll ? one : 0;
    const TensorShape qkv{{inputs[0].sizes[0], inputs[0].sizes[1], 3 * shape().width},
                          compute_type};
    const bool has_statistics = GpuOps::has_statistics(qkv, heads(), shape().dropout > 0);
    kept += has_statistics ? gpu_block_bytes(rows * shape().heads * 4) : 0;
    return {{{inputs[0].sizes, compute_type}}, kept};
  }

 private:
  HeadCounts heads() const { return {shape().heads, shape().heads}; }
  at::Tensor project(const at::Tensor& normed, const at::Tensor& x, Weights weights) const {
    return ops()
        .linear(normed, weights[kQkvWeight], weights[kQkvBias])
        .view({x.size(0), x.size(1), 3 * shape().width});
  }
  Dropout residual_dropout(const Pass& pass) const {
    return {shape().dropout, pass, kResidualSite};
  }
  Dropout probability_dropout(const Pass& pass) const {
    return {shape().dropout, pass, kProbabilitySite};
  }
};

}  // namespace

std::unique_ptr<Layer> make_gpu_attention(const Gpt2Shape& shape,
                                          int64_t block,
                                          std::shared_ptr<device::GpuContext> context) {
  return std::make_unique<GpuAttention>(shape, block, std::move(context));
}

}  // namespace penstock::model
