#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/gpu/embedding.h"
#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/gpt2/gpu_layer.h"

namespace penstock::model {

namespace {

enum { kTokens, kPositions };

std::vector<ParameterSpec> specs_of(const Gpt2Shape& shape) {
  std::vector<ParameterSpec> specs = gpt2_embedding_specs(shape);
  if (shape.is_tied) {  // the head's, too, which goes backward first
    specs[kTokens].is_gradient_overwritten = true;
    specs[kTokens].padding = table_padding(shape);
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
    const at::Tensor& tokens =
        input[0];  // [B, T], checked against the vocabulary by who reads data
    PENSTOCK_CHECK(tokens.is_contiguous() && tokens.scalar_type() == at::kLong &&
                       tokens.size(1) <= shape().context,
                   "token ids must be contiguous int64, at most ",
                   shape().context,
                   " a sample");
    at::Tensor out =
        at::empty({tokens.size(0), tokens.size(1), shape().width}, weights[kTokens].options());
    gpu::embed({.type = gpu_type(out.scalar_type()),
                .table = weights[kTokens].const_data_ptr(),
                .positions = weights[kPositions].const_data_ptr(),
                .tokens = tokens.const_data_ptr<int64_t>(),
                .out = out.data_ptr(),
                .rows = tokens.numel(),
                .context = tokens.size(1),
                .width = shape().width},
               ops().context().compute());
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
    const at::Tensor& tokens = input[0];
    const at::Tensor dy = dropout_backward(output_gradient[0], {shape().dropout, pass, /*site=*/0});
    if (gradients.is_fresh(kTokens)) {
      gradients[kTokens].zero_();  // nobody has written it yet, and this touches a few rows alone
    }
    const at::Tensor workspace = at::empty({gpu::embedding_backward_workspace_bytes(
                                               tokens.numel(), shape().width, shape().vocabulary)},
                                           dy.options().dtype(at::kByte));
    gpu::embed_backward({.type = gpu_type(dy.scalar_type()),
                         .gradient = dy.const_data_ptr(),
                         .tokens = tokens.const_data_ptr<int64_t>(),
                         .table_gradient = gradients[kTokens].data_ptr<float>(),
                         .position_gradient = gradients[kPositions].data_ptr<float>(),
                         .rows = tokens.numel(),
                         .context = tokens.size(1),
                         .width = shape().width,
                         .vocabulary = shape().vocabulary,
                         .workspace = workspace.data_ptr()},
                        ops().context().compute());
    return {at::Tensor()};
  }

  LayerSize size_for(const TensorShape& input,
                     at::ScalarType compute_type,
                     int32_t) const override {
    const TensorShape output{{input.sizes[0], input.sizes[1], shape().width}, compute_type};
    return {output, gpu_block_bytes(output.bytes())};
  }
};

}  // namespace

std::unique_ptr<Layer> make_gpu_embedding(const Gpt2Shape& shape,
                                          std::shared_ptr<device::GpuContext> context) {
  return std::make_unique<GpuEmbedding>(shape, std::move(context));
}

}  // namespace penstock::model
