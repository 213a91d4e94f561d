// Attention of grouped queries. Queries, keys and values lie side by side, as cuDNN's attention takes
// them, and so do their gradients: each matrix writes or reads its own columns.
#include <ATen/ATen.h>

#include "penstock/gpu/rotary.h"
#include "penstock/model/gpu_ops.h"
#include "penstock/model/llama/gpu.h"
#include "penstock/model/llama/gpu_layer.h"

namespace penstock::model {

namespace {

enum { kNorm, kQuery, kKey, kValue, kOut };
// Saved::tensors; queries and keys are turned to their positions.
enum { kNormed, kInverse, kQkv, kMixed, kStatistics };
enum { kOutInput, kOutGradient, kInput, kQkvGradient };  // WeightWork::tensors
// Save modes; each keeps less. The last keeps the mixed values and attention's statistics alone:
// norm and projections are recomputed in backward, attention itself is not.
enum { kKeepAll, kWithoutNorm, kStatisticsOnly };

class LlamaGpuAttention final : public LlamaGpuLayer {
 public:
  LlamaGpuAttention(const LlamaShape& shape,
                    int64_t block,
                    std::shared_ptr<device::GpuContext> context)
      : LlamaGpuLayer(cat("block ", block, " attention"),
                      "attention",
                      shape,
                      with_overwritten_gradients(llama_attention_specs(shape, block)),
                      {{"all"}, {"without-norm"}, {"statistics"}},
                      context),
        ops_(std::move(context)),
        frequencies_(kernels::rotary_frequencies(
            shape.head_width(), shape.rope_theta, shape.rope_scaling)) {}

  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];  // [B, T, C]
    const int32_t mode = saved == nullptr ? kStatisticsOnly : saved->mode;
    RmsNormed normed = norm(x, weights[kNorm]);
    at::Tensor qkv = project(normed.out, x, weights);
    if (mode >= kWithoutNorm) {
      normed.out.reset();
    }
    GpuOps::Mixed mixed = ops_.attend(qkv, heads(), no_dropout(pass));
    if (mode >= kStatisticsOnly) {
      qkv.reset();
    }
    if (saved != nullptr) {
      saved->tensors = {normed.out, normed.inverse, qkv, mixed.values, mixed.statistics};
      if (saved->without_output) {
        return {};
      }
    }
    return {linear().add_applied(flat(x), mixed.values, weights[kOut]).view(x.sizes())};
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
    add_out_gradient(gradients, kept[kMixed], flat(dy));
    at::Tensor qkv_gradient = gradient_of_qkv(weights, kept, x, dy, pass);
    ensure_normed(kept, x, weights);
    add_input_matrix_gradients(gradients, kept[kNormed], qkv_gradient);
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
    clear_fresh(gradients, {kQuery, kKey, kValue, kOut});
    const at::Tensor mixed = kept[kMixed];
    const at::Tensor qkv_gradient = gradient_of_qkv(weights, kept, x, dy, pass);
    const at::Tensor dx = gradient_of_input(weights, gradients, x, kept, qkv_gradient, dy);
    ensure_normed(kept, x, weights);
    work.tensors = {mixed, flat(dy), kept[kNormed], qkv_gradient};
    return {dx};
  }

  void backward_weight(Weights, Gradients gradients, WeightWork work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensors& kept = work.tensors;
    add_out_gradient(gradients, kept[kOutInput], kept[kOutGradient]);
    add_input_matrix_gradients(gradients, kept[kInput], kept[kQkvGradient]);
  }

  LayerSize size_for(const Shapes& inputs,
                     at::ScalarType compute_type,
                     int32_t mode) const override {
    const int64_t rows = inputs[0].sizes[0] * inputs[0].sizes[1];
    const TensorShape qkv{{inputs[0].sizes[0], inputs[0].sizes[1], qkv_width()}, compute_type};
    const int64_t one = gpu_block_bytes(rows * shape().width *
                                        static_cast<int64_t>(c10::elementSize(compute_type)));
    // output and mixed values; queries, keys and values; norm; a float per row of the norm, and of
    // each head
    int64_t kept = 2 * one + gpu_block_bytes(rows * 4);
    kept += mode < kStatisticsOnly ? gpu_block_bytes(qkv.bytes()) : 0;
    kept += mode == kKeepAll ? one : 0;
    kept += GpuOps::has_statistics(qkv, heads(), /*has_dropout=*/false)
                ? gpu_block_bytes(rows * shape().heads * 4)
                : 0;
    return {{{inputs[0].sizes, compute_type}}, kept};
  }

 private:
  HeadCounts heads() const { return {shape().heads, shape().kv_heads}; }
  int64_t qkv_width() const { return shape().width + 2 * shape().kv_width(); }
  static Dropout no_dropout(const Pass& pass) { return {/*share=*/0, pass, /*site=*/0}; }

  // The columns of queries, keys and values in rows of all.
  struct Parts {
    at::Tensor queries, keys, values;
  };
  Parts parts_of(const at::Tensor& rows) const {
    const int64_t width = shape().width, kv_width = shape().kv_width();
    return {rows.narrow(1, 0, width),
            rows.narrow(1, width, kv_width),
            rows.narrow(1, width + kv_width, kv_width)};
  }

  // [B, T, features]
  at::Tensor project(const at::Tensor& normed, const at::Tensor& x, Weights weights) const {
    const at::Tensor rows = at::empty({normed.size(0), qkv_width()}, normed.options());
    const Parts parts = parts_of(rows);
    linear().apply(normed, weights[kQuery], parts.queries);
    linear().apply(normed, weights[kKey], parts.keys);
    linear().apply(normed, weights[kValue], parts.values);
    rotate(rows, x.size(1), /*is_backward=*/false);
    return rows.view({x.size(0), x.size(1), qkv_width()});
  }

  // Queries and keys.
  void rotate(const at::Tensor& rows, int64_t tokens, bool is_backward) const {
    gpu::rotate({.type = gpu_type(rows.scalar_type()),
                 .x = rows.data_ptr(),
                 .rows = rows.size(0),
                 .stride = rows.size(1),
                 .heads = shape().heads + shape().kv_heads,
                 .context = tokens,
                 .is_backward = is_backward},
                frequencies_,
                context().compute());
  }

  void ensure_normed(Tensors& kept, const at::Tensor& x, Weights weights) const {
    if (!kept[kNormed].defined()) {
      kept[kNormed] = norm(x, weights[kNorm]).out;
    }
  }

  // Of queries, keys and values as the matrices made them; frees what was kept of them.
  at::Tensor gradient_of_qkv(Weights weights,
                             Tensors& kept,
                             const at::Tensor& x,
                             const at::Tensor& dy,
                             const Pass& pass) const {
    at::Tensor mixed_gradient = linear().input_gradient(flat(dy), weights[kOut]);
    if (!kept[kQkv].defined()) {
      ensure_normed(kept, x, weights);
      kept[kQkv] = project(kept[kNormed], x, weights);
    }
    const at::Tensor gradient =
        ops_.attend_backward(std::move(kept[kQkv]),
                             {std::move(kept[kMixed]), std::move(kept[kStatistics])},
                             std::move(mixed_gradient),
                             heads(),
                             no_dropout(pass));
    rotate(gradient, x.size(1), /*is_backward=*/true);
    return gradient;
  }

  void add_out_gradient(Gradients gradients, const at::Tensor& mixed, const at::Tensor& dy) const {
    linear().add_weight_gradient(gradients[kOut], mixed, dy, gradients.is_fresh(kOut));
  }

  void add_input_matrix_gradients(Gradients gradients,
                                  const at::Tensor& normed,
                                  const at::Tensor& qkv_gradient) const {
    const Parts parts = parts_of(qkv_gradient);
    linear().add_weight_gradient(
        gradients[kQuery], normed, parts.queries, gradients.is_fresh(kQuery));
    linear().add_weight_gradient(gradients[kKey], normed, parts.keys, gradients.is_fresh(kKey));
    linear().add_weight_gradient(
        gradients[kValue], normed, parts.values, gradients.is_fresh(kValue));
  }

  // Through the three maps and the norm, and around them.
  at::Tensor gradient_of_input(Weights weights,
                               Gradients gradients,
                               const at::Tensor& x,
                               const Tensors& kept,
                               at::Tensor qkv_gradient,
                               const at::Tensor& dy) const {
    Parts parts = parts_of(qkv_gradient);
    at::Tensor normed = linear().input_gradient(parts.queries, weights[kQuery]);
    linear().add_input_gradient(normed, parts.keys, weights[kKey]);
    linear().add_input_gradient(normed, parts.values, weights[kValue]);
    parts = {};
    qkv_gradient.reset();
    return finish_backward(
        x, weights[kNorm], kept[kInverse], std::move(normed), dy, gradients[kNorm]);
  }

  GpuOps ops_;
  gpu::RotaryFrequencies frequencies_;
};

}  // namespace

std::unique_ptr<Layer> make_llama_gpu_attention(const LlamaShape& shape,
                                                int64_t block,
                                                std::shared_ptr<device::GpuContext> context) {
  return std::make_unique<LlamaGpuAttention>(shape, block, std::move(context));
}

}  // namespace penstock::model
