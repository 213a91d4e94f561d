#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/kernels/embedding.h"
#include "penstock/model/dropout.h"
#include "penstock/model/gpt2_layer.h"

namespace penstock::model {

namespace {

enum { kTokens, kPositions };
enum { kIds, kGradient };  // WeightWork::tensors

template <typename T>
void embed_rows(Weights weights, const at::Tensor& tokens, at::Tensor& out) {
  const kernels::EmbeddingForward<T> work{
      .table = static_cast<const T*>(weights[kTokens].const_data_ptr()),
      .positions = static_cast<const T*>(weights[kPositions].const_data_ptr()),
      .tokens = tokens.const_data_ptr<int64_t>(),
      .out = static_cast<T*>(out.data_ptr()),
      .context = tokens.size(1),
      .width = out.size(2)};
  at::parallel_for(
      0, tokens.numel(), 64, [&](int64_t begin, int64_t end) { kernels::embed(work, begin, end); });
}

template <typename T>
void embed_rows_backward(Gradients gradients, const at::Tensor& tokens, const at::Tensor& dy) {
  const kernels::EmbeddingBackward<T> work{
      .gradient = static_cast<const T*>(dy.const_data_ptr()),
      .tokens = tokens.const_data_ptr<int64_t>(),
      .table_gradient = gradients[kTokens].data_ptr<float>(),
      .position_gradient = gradients[kPositions].data_ptr<float>(),
      .rows = tokens.numel(),
      .context = tokens.size(1),
      .width = dy.size(2)};
  at::parallel_for(0, work.width, 16, [&](int64_t begin, int64_t end) {
    kernels::embed_backward(work, begin, end);
  });
}

// The kernels go by pointer: what they are handed must be what they take it for.
void require_ids(const at::Tensor& tokens, int64_t vocabulary) {
  PENSTOCK_CHECK(tokens.is_contiguous() && tokens.scalar_type() == at::kLong,
                 "token ids must be contiguous int64");
  const auto [least, most] = at::aminmax(tokens);
  PENSTOCK_CHECK(least.item<int64_t>() >= 0 && most.item<int64_t>() < vocabulary,
                 "token ids from ",
                 least.item<int64_t>(),
                 " to ",
                 most.item<int64_t>(),
                 " in a vocabulary of ",
                 vocabulary);
}

class Gpt2Embedding final : public Gpt2Layer {
 public:
  explicit Gpt2Embedding(const Gpt2Shape& shape)
      : Gpt2Layer("embedding", "embedding", shape, gpt2_embedding_specs(shape), {{"all"}}) {}

  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    if (saved != nullptr && saved->without_output) {
      return {};  // backward needs the tokens alone
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& tokens = input[0];  // [B, T]
    require_ids(tokens, shape().vocabulary);
    PENSTOCK_CHECK(tokens.size(1) <= shape().context,
                   tokens.size(1),
                   " tokens in a context of ",
                   shape().context);
    at::Tensor out =
        at::empty({tokens.size(0), tokens.size(1), shape().width}, weights[kTokens].options());
    if (out.scalar_type() == at::kFloat) {
      embed_rows<float>(weights, tokens, out);
    } else {
      embed_rows<kernels::Bf16>(weights, tokens, out);
    }
    apply_dropout(out, {shape().dropout, pass, /*site=*/0});
    return {out};
  }

  bool backward_needs_weights() const override { return false; }

  Tensors backward(Weights weights,
                   Gradients gradients,
                   const Tensors& input,
                   Saved saved,
                   const Tensors& output_gradient,
                   const Pass& pass) const override {
    WeightWork work;
    Tensors none =
        backward_input(weights, gradients, input, std::move(saved), output_gradient, pass, work);
    backward_weight(weights, gradients, std::move(work));
    return none;
  }

  Tensors backward_input(Weights,
                         Gradients,
                         const Tensors& input,
                         Saved,
                         const Tensors& output_gradient,
                         const Pass& pass,
                         WeightWork& work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    work.tensors = {input[0],
                    dropout_backward(output_gradient[0], {shape().dropout, pass, /*site=*/0})};
    return {at::Tensor()};
  }

  void backward_weight(Weights, Gradients gradients, WeightWork work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& dy = work.tensors[kGradient];
    if (dy.scalar_type() == at::kFloat) {
      embed_rows_backward<float>(gradients, work.tensors[kIds], dy);
    } else {
      embed_rows_backward<kernels::Bf16>(gradients, work.tensors[kIds], dy);
    }
  }

  LayerSize size_for(const TensorShape& input,
                     at::ScalarType compute_type,
                     int32_t) const override {
    const TensorShape output{{input.sizes[0], input.sizes[1], shape().width}, compute_type};
    return {output, output.bytes()};
  }
};

}  // namespace

std::unique_ptr<Layer> make_gpt2_embedding(const Gpt2Shape& shape) {
  return std::make_unique<Gpt2Embedding>(shape);
}

}  // namespace penstock::model
