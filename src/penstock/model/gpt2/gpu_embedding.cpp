#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/gpt2/gpu_layer.h"
#include "penstock/model/gpu_token_table.h"

namespace penstock::model {

namespace {

enum { kTokens, kPositions };

std::vector<ParameterSpec> specs_of(const Gpt2Shape& shape) {
  std::vector<ParameterSpec> specs = gpt2_embedding_specs(shape);
  if (shape.is_tied) {  // the head's, too, which goes backward first
    make_head_table(specs[kTokens]);
  }
  return specs;
}

class GpuEmbedding final : public Gpt2GpuLayer {
 public:
  GpuEmbedding(const Gpt2Shape& shape, std::shared_ptr<device::GpuContext> context)
      : Gpt2GpuLayer(
            "embedding", "embedding", shape, specs_of(shape), {{"all"}}, std::move(context)) {}

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
    at::Tensor out =
        embed_tokens_on_gpu(ops().context(), weights[kTokens], weights[kPositions], tokens);
    apply_dropout(out, {shape().dropout, pass, /*site=*/0});
    return {out};
  }

  Tensors backward(Weights,
                   Gradients gradients,
                   const Tensors& input,
                   Saved,
                   const Tensors& output_gradient,
                   const Pass& pass) const override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    add_token_gradients_on_gpu(
        ops().context(),
        gradients[kTokens],
        gradients.is_fresh(kTokens),
        gradients[kPositions],
        input[0],
        dropout_backward(output_gradient[0], {shape().dropout, pass, /*site=*/0}));
    return {at::Tensor()};
  }

  LayerSize size_for(const Shapes& inputs, at::ScalarType compute_type, int32_t) const override {
    const TensorShape output{{inputs[0].sizes[0], inputs[0].sizes[1], shape().width}, compute_type};
    return {{output}, gpu_block_bytes(output.bytes())};
  }
};

}  // namespace

std::unique_ptr<Layer> make_gpu_embedding(const Gpt2Shape& shape,
                                          std::shared_ptr<device::GpuContext> context) {
  return std::make_unique<GpuEmbedding>(shape, std::move(context));
}

}  // namespace penstock::model
