#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/model/gpu_token_table.h"
#include "penstock/model/llama/gpu.h"
#include "penstock/model/llama/gpu_layer.h"

namespace penstock::model {

namespace {

enum { kTokens };
enum { kIds, kGradient };  // WeightWork::tensors

std::vector<ParameterSpec> specs_of(const LlamaShape& shape) {
  std::vector<ParameterSpec> specs = llama_embedding_specs(shape);
  if (shape.is_tied) {  // the head's, too, which goes backward first
    make_head_table(specs[kTokens]);
  }
  return specs;
}

class LlamaGpuEmbedding final : public LlamaGpuLayer {
 public:
  LlamaGpuEmbedding(const LlamaShape& shape, std::shared_ptr<device::GpuContext> context)
      : LlamaGpuLayer(
            "embedding", "embedding", shape, specs_of(shape), {{"all"}}, std::move(context)) {}

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
    return {embed_tokens_on_gpu(context(), weights[kTokens], /*positions=*/{}, tokens)};
  }

  bool backward_needs_weights() const override { return false; }

  Tensors backward(Weights,
                   Gradients gradients,
                   const Tensors& input,
                   Saved,
                   const Tensors& output_gradient,
                   const Pass&) const override {
    add_gradient(gradients, input[0], output_gradient[0]);
    return {at::Tensor()};
  }

  Tensors backward_input(Weights,
                         Gradients gradients,
                         const Tensors& input,
                         Saved,
                         const Tensors& output_gradient,
                         const Pass&,
                         WeightWork& work) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    clear_fresh(gradients, {kTokens});
    work.tensors = {input[0], output_gradient[0]};
    return {at::Tensor()};
  }

  void backward_weight(Weights, Gradients gradients, WeightWork work) const override {
    add_gradient(gradients, work.tensors[kIds], work.tensors[kGradient]);
  }

  LayerSize size_for(const Shapes& inputs, at::ScalarType compute_type, int32_t) const override {
    const TensorShape output{{inputs[0].sizes[0], inputs[0].sizes[1], shape().width}, compute_type};
    return {{output}, gpu_block_bytes(output.bytes())};
  }

 private:
  void add_gradient(Gradients gradients, const at::Tensor& tokens, const at::Tensor& dy) const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    add_token_gradients_on_gpu(context(),
                               gradients[kTokens],
                               gradients.is_fresh(kTokens),
                               /*position_gradient=*/{},
                               tokens,
                               dy);
  }
};

}  // namespace

std::unique_ptr<Layer> make_llama_gpu_embedding(const LlamaShape& shape,
                                                std::shared_ptr<device::GpuContext> context) {
  return std::make_unique<LlamaGpuEmbedding>(shape, std::move(context));
}

}  // namespace penstock::model
