#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/model/llama/layer.h"
#include "penstock/model/token_table.h"

namespace penstock::model {

namespace {

enum { kTokens };
enum { kIds, kGradient };  // WeightWork::tensors

class LlamaEmbedding final : public LlamaLayer {
 public:
  explicit LlamaEmbedding(const LlamaShape& shape)
      : LlamaLayer("embedding", "embedding", shape, llama_embedding_specs(shape), {{"all"}}) {}

  Tensors forward(Weights weights, const Tensors& input, const Pass&, Saved* saved) const override {
    if (saved != nullptr && saved->without_output) {
      return {};  // backward needs the tokens alone
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor& tokens = input[0];  // [B, T]
    PENSTOCK_CHECK(tokens.size(1) <= shape().context,
                   tokens.size(1),
                   " tokens in a context of ",
                   shape().context);
    return {embed_tokens(weights[kTokens], /*positions=*/{}, tokens)};
  }

  bool backward_needs_weights() const override { return false; }

  Tensors backward(Weights,
                   Gradients gradients,
                   const Tensors& input,
                   Saved,
                   const Tensors& output_gradient,
                   const Pass&) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    add_token_gradients(gradients[kTokens], /*positions=*/{}, input[0], output_gradient[0]);
    return {at::Tensor()};
  }

  Tensors backward_input(Weights,
                         Gradients,
                         const Tensors& input,
                         Saved,
                         const Tensors& output_gradient,
                         const Pass&,
                         WeightWork& work) const override {
    work.tensors = {input[0], output_gradient[0]};
    return {at::Tensor()};
  }

  void backward_weight(Weights, Gradients gradients, WeightWork work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    add_token_gradients(
        gradients[kTokens], /*positions=*/{}, work.tensors[kIds], work.tensors[kGradient]);
  }

  LayerSize size_for(const Shapes& inputs, at::ScalarType compute_type, int32_t) const override {
    const TensorShape output{{inputs[0].sizes[0], inputs[0].sizes[1], shape().width}, compute_type};
    return {{output}, output.bytes()};
  }
};

}  // namespace

std::unique_ptr<Layer> make_llama_embedding(const LlamaShape& shape) {
  return std::make_unique<LlamaEmbedding>(shape);
}

}  // namespace penstock::model
