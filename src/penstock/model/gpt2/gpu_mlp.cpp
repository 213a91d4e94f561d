#include <ATen/ATen.h>

#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/gpt2/gpu_layer.h"

namespace penstock::model {

namespace {

enum { kNormScale, kNormShift, kInWeight, kInBias, kOutWeight, kOutBias };
enum { kNormed, kMean, kInverseDeviation, kHidden, kActivated };  // Saved::tensors
enum { kKeepAll, kWithoutGelu, kWithoutNorm };                    // save modes; each keeps less

class GpuMlp final : public Gpt2GpuLayer {
 public:
  GpuMlp(const Gpt2Shape& shape, int64_t block, std::shared_ptr<device::GpuContext> context)
      : Gpt2GpuLayer(cat("block ", block, " mlp"),
                     "mlp",
                     shape,
                     with_overwritten_gradients(gpt2_mlp_specs(shape, block)),
                     {{"all"}, {"without-gelu"}, {"without-gelu-norm"}},
                     std::move(context)) {}

  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];  // [B, T, C]
    const at::Tensor rows = x.view({-1, shape().width});
    const int32_t mode = saved == nullptr ? kWithoutNorm : saved->mode;
    GpuOps::Normed normed = ops().norm(rows, weights[kNormScale], weights[kNormShift]);
    if (saved != nullptr && saved->without_output && mode != kKeepAll) {
      const at::Tensor hidden = ops().linear(normed.out, weights[kInWeight], weights[kInBias]);
      keep(*saved, mode, normed, {{}, hidden});
      return {};
    }
    GpuOps::Activated made = ops().linear_gelu(
        normed.out, weights[kInWeight], weights[kInBias], /*keeps_hidden=*/saved != nullptr);
    if (saved != nullptr) {
      keep(*saved, mode, normed, made);
      if (saved->without_output) {
        return {};
      }
    }
    normed = {};
    made.hidden.reset();
    const Dropout dropout = residual_dropout(pass);
    if (!dropout.is_active()) {
      return {ops()
                  .linear(made.activated, weights[kOutWeight], weights[kOutBias], rows)
                  .view(x.sizes())};
    }
    at::Tensor out =
        ops().linear(made.activated, weights[kOutWeight], weights[kOutBias]).view(x.sizes());
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
    if (!kept[kActivated].defined()) {
      kept[kActivated] = ops().gelu(kept[kHidden]);
    }
    ops().add_weight_gradient(
        gradients[kOutWeight], kept[kActivated], projected, gradients.is_fresh(kOutWeight));
    kept[kActivated].reset();
    add_end_bias_gradient(gradients[kOutBias], output_gradient, projected);
    at::Tensor hidden_gradient = ops().linear_gelu_input_gradient(
        projected, weights[kOutWeight], kept[kHidden], gradients[kInBias]);
    projected.reset();
    kept[kHidden].reset();
    if (!kept[kNormed].defined()) {
      kept[kNormed] = ops().norm(rows, weights[kNormScale], weights[kNormShift]).out;
    }
    ops().add_weight_gradient(
        gradients[kInWeight], kept[kNormed], hidden_gradient, gradients.is_fresh(kInWeight));
    kept[kNormed].reset();
    at::Tensor normed_gradient = ops().linear_input_gradient(hidden_gradient, weights[kInWeight]);
    hidden_gradient.reset();
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
    const int64_t wide = gpu_block_bytes(4 * rows * shape().width * element);
    // output, hidden; activated; norm; two floats of norm statistics per row
    const int64_t kept =
        one + wide + (mode == kKeepAll ? wide : 0) + (mode < kWithoutNorm ? one : 0);
    return {{{inputs[0].sizes, compute_type}}, kept + 2 * gpu_block_bytes(rows * 4)};
  }

 private:
  static void keep(Saved& saved,
                   int32_t mode,
                   const GpuOps::Normed& normed,
                   const GpuOps::Activated& made) {
    saved.tensors = {mode < kWithoutNorm ? normed.out : at::Tensor(),
                     normed.mean,
                     normed.inverse_deviation,
                     made.hidden,
                     mode == kKeepAll ? made.activated : at::Tensor()};
  }
  Dropout residual_dropout(const Pass& pass) const { return {shape().dropout, pass, /*site=*/0}; }
};

}  // namespace

std::unique_ptr<Layer> make_gpu_mlp(const Gpt2Shape& shape,
                                    int64_t block,
                                    std::shared_ptr<device::GpuContext> context) {
  return std::make_unique<GpuMlp>(shape, block, std::move(context));
}

}  // namespace penstock::model
