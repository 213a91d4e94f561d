#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/model/dropout.h"
#include "penstock/model/gpt2/layer.h"
#include "penstock/model/token_table.h"

namespace penstock::model {

namespace {

enum { kTokens, kPositions };
enum { kIds, kGradient };  // WeightWork::tensors

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
    PENSTOCK_CHECK(tokens.size(1) <= shape().context,
                   tokens.size(1),
                   " tokens in a context of ",
                   shape().context);
    at::Tensor out = embed_tokens(weights[kTokens], weights[kPositions], tokens);
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
    add_token_gradients(
        gradients[kTokens], gradients[kPositions], work.tensors[kIds], work.tensors[kGradient]);
  }

  LayerSize size_for(const Shapes& inputs, at::ScalarType compute_type, int32_t) const override {
    const TensorShape output{{inputs[0].sizes[0], inputs[0].sizes[1], shape().width}, compute_type};
    return {{output}, output.bytes()};
  }
};

}  // namespace

std::unique_ptr<Layer> make_gpt2_embedding(const Gpt2Shape& shape) {
  return std::make_unique<Gpt2Embedding>(shape);
}

}  // namespace penstock::model
