// SwiGLU: silu(x Wgᵀ) * (x Wuᵀ), and back to the width.
#include <utility>

#include <ATen/ATen.h>

#include "penstock/model/llama/layer.h"
#include "penstock/model/rms_norm.h"
#include "penstock/model/transposed_linear.h"

namespace penstock::model {

namespace {

enum { kNorm, kGate, kUp, kDown };
enum { kNormed, kInverse, kGated, kRaised, kActivated };                 // Saved::tensors
enum { kDownInput, kDownGradient, kInput, kGateGradient, kUpGradient };  // WeightWork::tensors
// Save modes; each keeps less.
enum { kKeepAll, kWithoutSilu, kWithoutNorm };

class LlamaMlp final : public LlamaLayer {
 public:
  LlamaMlp(const LlamaShape& shape, int64_t block)
      : LlamaLayer(cat("block ", block, " mlp"),
                   "mlp",
                   shape,
                   llama_mlp_specs(shape, block),
                   {{"all"}, {"without-silu"}, {"without-silu-norm"}}) {}

  Tensors forward(Weights weights, const Tensors& input, const Pass&, Saved* saved) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];  // [B, T, C]
    RmsNormed normed = norm(x, weights);
    at::Tensor gated = apply_matrix(normed.out, weights[kGate]);
    const at::Tensor raised = apply_matrix(normed.out, weights[kUp]);
    const int32_t mode = saved == nullptr ? kWithoutNorm : saved->mode;
    if (mode >= kWithoutNorm) {
      normed.out.reset();
    }
    if (saved == nullptr) {
      // Where nothing is kept, the activation takes the place of its inputs.
      return {add_applied(x, at::silu_(gated).mul_(raised), weights[kDown])};
    }
    saved->tensors = {normed.out, normed.inverse, gated, raised, at::Tensor()};
    if (saved->without_output && mode != kKeepAll) {
      return {};
    }
    const at::Tensor activated = activate(gated, raised);
    if (mode == kKeepAll) {
      saved->tensors[kActivated] = activated;
    }
    if (saved->without_output) {
      return {};
    }
    return {add_applied(x, activated, weights[kDown])};
  }

  Tensors backward(Weights weights,
                   Gradients gradients,
                   const Tensors& input,
                   Saved saved,
                   const Tensors& output_gradient,
                   const Pass&) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];
    const at::Tensor& dy = output_gradient[0];
    Tensors& kept = saved.tensors;
    if (!kept[kActivated].defined()) {
      kept[kActivated] = activate(kept[kGated], kept[kRaised]);
    }
    add_matrix_gradient(gradients[kDown], kept[kActivated], flat(dy));
    kept[kActivated].reset();
    Inner inner = gradient_of_inner(weights, kept, dy);
    if (!kept[kNormed].defined()) {
      kept[kNormed] = norm(x, weights).out;
    }
    add_input_matrix_gradients(gradients, kept[kNormed], inner);
    kept[kNormed].reset();
    return {gradient_of_input(weights, gradients, x, kept, std::move(inner), dy)};
  }

  Tensors backward_input(Weights weights,
                         Gradients gradients,
                         const Tensors& input,
                         Saved saved,
                         const Tensors& output_gradient,
                         const Pass&,
                         WeightWork& work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];
    const at::Tensor& dy = output_gradient[0];
    Tensors& kept = saved.tensors;
    if (!kept[kActivated].defined()) {
      kept[kActivated] = activate(kept[kGated], kept[kRaised]);
    }
    const Inner inner = gradient_of_inner(weights, kept, dy);
    const at::Tensor dx = gradient_of_input(weights, gradients, x, kept, inner, dy);
    if (!kept[kNormed].defined()) {
      kept[kNormed] = norm(x, weights).out;
    }
    work.tensors = {kept[kActivated], flat(dy), kept[kNormed], inner.gated, inner.raised};
    return {dx};
  }

  void backward_weight(Weights, Gradients gradients, WeightWork work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensors& kept = work.tensors;
    add_matrix_gradient(gradients[kDown], kept[kDownInput], kept[kDownGradient]);
    add_input_matrix_gradients(gradients, kept[kInput], {kept[kGateGradient], kept[kUpGradient]});
  }

  LayerSize size_for(const Shapes& inputs,
                     at::ScalarType compute_type,
                     int32_t mode) const override {
    const int64_t rows = inputs[0].sizes[0] * inputs[0].sizes[1];
    const int64_t element = static_cast<int64_t>(c10::elementSize(compute_type));
    // output and norm; gate, up and activation; a float per row of the norm
    const int64_t widths = mode < kWithoutNorm ? 2 : 1;
    const int64_t hiddens = mode == kKeepAll ? 3 : 2;
    return {{{inputs[0].sizes, compute_type}},
            rows * ((widths * shape().width + hiddens * shape().hidden) * element + 4)};
  }

 private:
  // Gradients of what the gate and the other matrix make.
  struct Inner {
    at::Tensor gated, raised;
  };

  RmsNormed norm(const at::Tensor& x, Weights weights) const {
    return rms_norm(flat(x), weights[kNorm], shape().norm_epsilon);
  }

  static at::Tensor activate(const at::Tensor& gated, const at::Tensor& raised) {
    return at::silu(gated).mul_(raised);
  }

  // Frees what was kept of both.
  Inner gradient_of_inner(Weights weights, Tensors& kept, const at::Tensor& dy) const {
    at::Tensor activated = matrix_input_gradient(flat(dy), weights[kDown]);
    Inner inner;
    inner.raised = at::silu(kept[kGated]).mul_(activated);
    activated.mul_(kept[kRaised]);
    kept[kRaised].reset();
    inner.gated = at::silu_backward(activated, kept[kGated]);
    kept[kGated].reset();
    return inner;
  }

  static void add_input_matrix_gradients(Gradients gradients,
                                         const at::Tensor& normed,
                                         const Inner& inner) {
    add_matrix_gradient(gradients[kGate], normed, inner.gated);
    add_matrix_gradient(gradients[kUp], normed, inner.raised);
  }

  // Through both maps and the norm, and around them.
  at::Tensor gradient_of_input(Weights weights,
                               Gradients gradients,
                               const at::Tensor& x,
                               const Tensors& kept,
                               Inner inner,
                               const at::Tensor& dy) const {
    at::Tensor normed = matrix_input_gradient(inner.gated, weights[kGate]);
    normed.addmm_(inner.raised, weights[kUp]);
    inner = {};
    return rms_norm_backward({flat(x), weights[kNorm], kept[kInverse]},
                             std::move(normed),
                             flat(dy),
                             gradients[kNorm])
        .view(x.sizes());
  }
};

}  // namespace

std::unique_ptr<Layer> make_llama_mlp(const LlamaShape& shape, int64_t block) {
  return std::make_unique<LlamaMlp>(shape, block);
}

}  // namespace penstock::model
