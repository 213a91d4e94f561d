#include <ATen/ATen.h>

#include "penstock/gpu/swiglu.h"
#include "penstock/model/llama/gpu.h"
#include "penstock/model/llama/gpu_layer.h"

namespace penstock::model {

namespace {

enum { kNorm, kGate, kUp, kDown };
enum { kNormed, kInverse, kGated, kRaised, kActivated };                 // Saved::tensors
enum { kDownInput, kDownGradient, kInput, kGateGradient, kUpGradient };  // WeightWork::tensors
// Save modes; each keeps less.
enum { kKeepAll, kWithoutSilu, kWithoutNorm };

class LlamaGpuMlp final : public LlamaGpuLayer {
 public:
  LlamaGpuMlp(const LlamaShape& shape, int64_t block, std::shared_ptr<device::GpuContext> context)
      : LlamaGpuLayer(cat("block ", block, " mlp"),
                      "mlp",
                      shape,
                      with_overwritten_gradients(llama_mlp_specs(shape, block)),
                      {{"all"}, {"without-silu"}, {"without-silu-norm"}},
                      std::move(context)) {}

  Tensors forward(Weights weights, const Tensors& input, const Pass&, Saved* saved) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];  // [B, T, C]
    const int32_t mode = saved == nullptr ? kWithoutNorm : saved->mode;
    RmsNormed normed = norm(x, weights[kNorm]);
    const at::Tensor gated = linear().apply(normed.out, weights[kGate]);
    const at::Tensor raised = linear().apply(normed.out, weights[kUp]);
    if (mode >= kWithoutNorm) {
      normed.out.reset();
    }
    if (saved == nullptr) {
      activate(gated, raised, /*out=*/gated);  // nobody needs the gate any more
      return {add_down(x, gated, weights)};
    }
    saved->tensors = {normed.out, normed.inverse, gated, raised, at::Tensor()};
    if (saved->without_output && mode != kKeepAll) {
      return {};
    }
    const at::Tensor activated = at::empty_like(gated);
    activate(gated, raised, activated);
    if (mode == kKeepAll) {
      saved->tensors[kActivated] = activated;
    }
    if (saved->without_output) {
      return {};
    }
    return {add_down(x, activated, weights)};
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
    ensure_activated(kept);
    add_down_gradient(gradients, kept[kActivated], flat(dy));
    kept[kActivated].reset();
    Inner inner = gradient_of_inner(weights, kept, dy);
    ensure_normed(kept, x, weights);
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
    clear_fresh(gradients, {kGate, kUp, kDown});
    ensure_activated(kept);
    const Inner inner = gradient_of_inner(weights, kept, dy);
    const at::Tensor dx = gradient_of_input(weights, gradients, x, kept, inner, dy);
    ensure_normed(kept, x, weights);
    work.tensors = {kept[kActivated], flat(dy), kept[kNormed], inner.gated, inner.raised};
    return {dx};
  }

  void backward_weight(Weights, Gradients gradients, WeightWork work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensors& kept = work.tensors;
    add_down_gradient(gradients, kept[kDownInput], kept[kDownGradient]);
    add_input_matrix_gradients(gradients, kept[kInput], {kept[kGateGradient], kept[kUpGradient]});
  }

  LayerSize size_for(const Shapes& inputs,
                     at::ScalarType compute_type,
                     int32_t mode) const override {
    const int64_t rows = inputs[0].sizes[0] * inputs[0].sizes[1];
    const int64_t element = static_cast<int64_t>(c10::elementSize(compute_type));
    const int64_t narrow = gpu_block_bytes(rows * shape().width * element);
    const int64_t wide = gpu_block_bytes(rows * shape().hidden * element);
    // output and norm; gate, up and activation; a float per row of the norm
    const int64_t kept = (mode < kWithoutNorm ? 2 : 1) * narrow + (mode == kKeepAll ? 3 : 2) * wide;
    return {{{inputs[0].sizes, compute_type}}, kept + gpu_block_bytes(rows * 4)};
  }

 private:
  // Gradients of what the gate and the other matrix make.
  struct Inner {
    at::Tensor gated, raised;
  };

  void activate(const at::Tensor& gated, const at::Tensor& raised, const at::Tensor& out) const {
    gpu::swiglu({.type = gpu_type(gated.scalar_type()),
                 .gate = gated.const_data_ptr(),
                 .up = raised.const_data_ptr(),
                 .out = out.data_ptr(),
                 .count = gated.numel()},
                context().compute());
  }

  at::Tensor add_down(const at::Tensor& x, const at::Tensor& activated, Weights weights) const {
    return linear().add_applied(flat(x), activated, weights[kDown]).view(x.sizes());
  }

  void ensure_activated(Tensors& kept) const {
    if (!kept[kActivated].defined()) {
      kept[kActivated] = at::empty_like(kept[kGated]);
      activate(kept[kGated], kept[kRaised], kept[kActivated]);
    }
  }

  void ensure_normed(Tensors& kept, const at::Tensor& x, Weights weights) const {
    if (!kept[kNormed].defined()) {
      kept[kNormed] = norm(x, weights[kNorm]).out;
    }
  }

  // Takes the place of what was kept of the gate, and frees what was kept of the other.
  Inner gradient_of_inner(Weights weights, Tensors& kept, const at::Tensor& dy) const {
    const at::Tensor activated = linear().input_gradient(flat(dy), weights[kDown]);
    Inner inner{std::move(kept[kGated]), activated};
    gpu::swiglu_backward({.type = gpu_type(activated.scalar_type()),
                          .gradient = activated.const_data_ptr(),
                          .gate = inner.gated.const_data_ptr(),
                          .up = kept[kRaised].const_data_ptr(),
                          .gate_gradient = inner.gated.data_ptr(),
                          .up_gradient = inner.raised.data_ptr(),
                          .count = activated.numel()},
                         context().compute());
    kept[kGated].reset();
    kept[kRaised].reset();
    return inner;
  }

  void add_down_gradient(Gradients gradients,
                         const at::Tensor& activated,
                         const at::Tensor& dy) const {
    linear().add_weight_gradient(gradients[kDown], activated, dy, gradients.is_fresh(kDown));
  }

  void add_input_matrix_gradients(Gradients gradients,
                                  const at::Tensor& normed,
                                  const Inner& inner) const {
    linear().add_weight_gradient(gradients[kGate], normed, inner.gated, gradients.is_fresh(kGate));
    linear().add_weight_gradient(gradients[kUp], normed, inner.raised, gradients.is_fresh(kUp));
  }

  // Through both maps and the norm, and around them.
  at::Tensor gradient_of_input(Weights weights,
                               Gradients gradients,
                               const at::Tensor& x,
                               const Tensors& kept,
                               Inner inner,
                               const at::Tensor& dy) const {
    at::Tensor normed = linear().input_gradient(inner.gated, weights[kGate]);
    linear().add_input_gradient(normed, inner.raised, weights[kUp]);
    inner = {};
    return finish_backward(
        x, weights[kNorm], kept[kInverse], std::move(normed), dy, gradients[kNorm]);
  }
};

}  // namespace

std::unique_ptr<Layer> make_llama_gpu_mlp(const LlamaShape& shape,
                                          int64_t block,
                                          std::shared_ptr<device::GpuContext> context) {
  return std::make_unique<LlamaGpuMlp>(shape, block, std::move(context));
}

}  // namespace penstock::model
