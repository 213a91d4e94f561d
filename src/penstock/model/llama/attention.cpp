// Attention of grouped queries: heads / kv_heads heads of queries share a head of keys and values.
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/model/llama/layer.h"
#include "penstock/model/rms_norm.h"
#include "penstock/model/transposed_linear.h"

namespace penstock::model {

namespace {

enum { kNorm, kQuery, kKey, kValue, kOut };
// Saved::tensors; queries and keys are turned to their positions.
enum { kNormed, kInverse, kQueries, kKeys, kValues, kMixed, kStatistics };
// WeightWork::tensors
enum { kOutInput, kOutGradient, kInput, kQueryGradient, kKeyGradient, kValueGradient };
enum { kKeepAll, kWithoutNorm };  // save modes; each keeps less

// Of rows [B T, heads D], or of their gradients.
struct Rows {
  at::Tensor queries, keys, values;
};

class LlamaAttention final : public LlamaLayer {
 public:
  LlamaAttention(const LlamaShape& shape,
                 int64_t block,
                 std::shared_ptr<const kernels::RotaryTable> rotary)
      : LlamaLayer(cat("block ", block, " attention"),
                   "attention",
                   shape,
                   llama_attention_specs(shape, block),
                   {{"all"}, {"without-norm"}}),
        rotary_(std::move(rotary)) {}

  Tensors forward(Weights weights, const Tensors& input, const Pass&, Saved* saved) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& x = input[0];  // [B, T, C]
    RmsNormed normed = rms_norm(flat(x), weights[kNorm], shape().norm_epsilon);
    Rows rows{apply_matrix(normed.out, weights[kQuery]),
              apply_matrix(normed.out, weights[kKey]),
              apply_matrix(normed.out, weights[kValue])};
    if (saved == nullptr || saved->mode >= kWithoutNorm) {
      normed.out.reset();
    }
    rotate(rows.queries, x.size(1), /*is_backward=*/false);
    rotate(rows.keys, x.size(1), /*is_backward=*/false);
    at::Tensor mixed, statistics;
    {
      const auto [values, sums] =
          at::_scaled_dot_product_flash_attention_for_cpu(as_heads(rows.queries, x),
                                                          as_all_heads(rows.keys, x),
                                                          as_all_heads(rows.values, x),
                                                          /*dropout_p=*/0,
                                                          /*is_causal=*/true);
      mixed = as_rows(values);
      statistics = sums;
    }
    if (saved != nullptr) {
      saved->tensors = {
          normed.out, normed.inverse, rows.queries, rows.keys, rows.values, mixed, statistics};
      if (saved->without_output) {
        return {};
      }
    }
    rows = {};
    return {add_applied(x, mixed, weights[kOut])};
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
    add_matrix_gradient(gradients[kOut], kept[kMixed], flat(dy));
    Rows rows = gradient_of_rows(weights, kept, x, dy);
    if (!kept[kNormed].defined()) {
      kept[kNormed] = rms_norm(flat(x), weights[kNorm], shape().norm_epsilon).out;
    }
    add_input_matrix_gradients(gradients, kept[kNormed], rows);
    kept[kNormed].reset();
    return {gradient_of_input(weights, gradients, x, kept, std::move(rows), dy)};
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
    const at::Tensor mixed = kept[kMixed];
    const Rows rows = gradient_of_rows(weights, kept, x, dy);
    const at::Tensor dx = gradient_of_input(weights, gradients, x, kept, rows, dy);
    if (!kept[kNormed].defined()) {
      kept[kNormed] = rms_norm(flat(x), weights[kNorm], shape().norm_epsilon).out;
    }
    work.tensors = {mixed, flat(dy), kept[kNormed], rows.queries, rows.keys, rows.values};
    return {dx};
  }

  void backward_weight(Weights, Gradients gradients, WeightWork work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensors& kept = work.tensors;
    add_matrix_gradient(gradients[kOut], kept[kOutInput], kept[kOutGradient]);
    add_input_matrix_gradients(
        gradients, kept[kInput], {kept[kQueryGradient], kept[kKeyGradient], kept[kValueGradient]});
  }

  LayerSize size_for(const Shapes& inputs,
                     at::ScalarType compute_type,
                     int32_t mode) const override {
    const int64_t rows = inputs[0].sizes[0] * inputs[0].sizes[1];
    const int64_t element = static_cast<int64_t>(c10::elementSize(compute_type));
    // output, queries, mixed, norm; keys and values; a float per row of the norm, and of each head
    const int64_t features = (mode == kKeepAll ? 4 : 3) * shape().width + 2 * shape().kv_width();
    return {{{inputs[0].sizes, compute_type}},
            rows * (features * element + 4 * (1 + shape().heads))};
  }

 private:
  int64_t group() const { return shape().heads / shape().kv_heads; }

  // [B T, heads D] as [B, heads, T, D].
  at::Tensor as_heads(const at::Tensor& rows, const at::Tensor& x) const {
    return rows.view({x.size(0), x.size(1), -1, shape().head_width()}).transpose(1, 2);
  }

  // Keys or values for every head of queries: a copy, unless each has one of its own.
  at::Tensor as_all_heads(const at::Tensor& rows, const at::Tensor& x) const {
    const at::Tensor heads = as_heads(rows, x);
    if (group() == 1) {
      return heads;
    }
    return heads.unsqueeze(2)
        .expand({-1, -1, group(), -1, -1})
        .reshape({x.size(0), shape().heads, x.size(1), -1});
  }

  static at::Tensor as_rows(const at::Tensor& heads) {
    return heads.transpose(1, 2).reshape({heads.size(0) * heads.size(2), -1});
  }

  // A head of keys or values gets the sum over the heads that read it.
  at::Tensor sum_of_group(const at::Tensor& heads) const {
    if (group() == 1) {
      return as_rows(heads);
    }
    return as_rows(
        heads.reshape({heads.size(0), -1, group(), heads.size(2), heads.size(3)}).sum(2));
  }

  void rotate(at::Tensor& rows, int64_t tokens, bool is_backward) const {
    const auto run = [&](auto element) {
      using T = decltype(element);
      const kernels::Rotation<T> work{.rows = static_cast<T*>(rows.data_ptr()),
                                      .heads = rows.size(1) / shape().head_width(),
                                      .context = tokens,
                                      .table = rotary_.get(),
                                      .is_backward = is_backward};
      at::parallel_for(0, rows.size(0), 16, [&](int64_t begin, int64_t end) {
        kernels::rotate(work, begin, end);
      });
    };
    if (rows.scalar_type() == at::kFloat) {
      run(float{});
    } else {
      run(kernels::Bf16{});
    }
  }

  // Of queries, keys and values as the matrices made them; frees what was kept of them.
  Rows gradient_of_rows(Weights weights,
                        Tensors& kept,
                        const at::Tensor& x,
                        const at::Tensor& dy) const {
    const at::Tensor mixed_gradient = matrix_input_gradient(flat(dy), weights[kOut]);
    at::Tensor queries, keys, values;
    std::tie(queries, keys, values) =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(as_heads(mixed_gradient, x),
                                                                 as_heads(kept[kQueries], x),
                                                                 as_all_heads(kept[kKeys], x),
                                                                 as_all_heads(kept[kValues], x),
                                                                 as_heads(kept[kMixed], x),
                                                                 kept[kStatistics],
                                                                 /*dropout_p=*/0,
                                                                 /*is_causal=*/true);
    for (const int index : {kQueries, kKeys, kValues, kMixed, kStatistics}) {
      kept[static_cast<size_t>(index)].reset();
    }
    Rows rows;
    rows.queries = as_rows(queries);
    queries.reset();
    rows.keys = sum_of_group(keys);
    keys.reset();
    rows.values = sum_of_group(values);
    values.reset();
    rotate(rows.queries, x.size(1), /*is_backward=*/true);
    rotate(rows.keys, x.size(1), /*is_backward=*/true);
    return rows;
  }

  static void add_input_matrix_gradients(Gradients gradients,
                                         const at::Tensor& normed,
                                         const Rows& rows) {
    add_matrix_gradient(gradients[kQuery], normed, rows.queries);
    add_matrix_gradient(gradients[kKey], normed, rows.keys);
    add_matrix_gradient(gradients[kValue], normed, rows.values);
  }

  // Through the three maps and the norm, and around them.
  at::Tensor gradient_of_input(Weights weights,
                               Gradients gradients,
                               const at::Tensor& x,
                               const Tensors& kept,
                               Rows rows,
                               const at::Tensor& dy) const {
    at::Tensor normed = matrix_input_gradient(rows.queries, weights[kQuery]);
    normed.addmm_(rows.keys, weights[kKey]);
    normed.addmm_(rows.values, weights[kValue]);
    rows = {};
    return rms_norm_backward({flat(x), weights[kNorm], kept[kInverse]},
                             std::move(normed),
                             flat(dy),
                             gradients[kNorm])
        .view(x.sizes());
  }

  std::shared_ptr<const kernels::RotaryTable> rotary_;
};

}  // namespace

std::unique_ptr<Layer> make_llama_attention(const LlamaShape& shape,
                                            int64_t block,
                                            std::shared_ptr<const kernels::RotaryTable> rotary) {
  return std::make_unique<LlamaAttention>(shape, block, std::move(rotary));
}

}  // namespace penstock::model
