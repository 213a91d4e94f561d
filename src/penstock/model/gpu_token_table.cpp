#include "penstock/model/gpu_token_table.h"

#include <ATen/ATen.h>

#include "penstock/gpu/embedding.h"
#include "penstock/model/gpu_tensors.h"

namespace penstock::model {

at::Tensor embed_tokens_on_gpu(const device::GpuContext& context,
                               const at::Tensor& table,
                               const at::Tensor& positions,
                               const at::Tensor& tokens) {
  PENSTOCK_CHECK(tokens.is_contiguous() && tokens.scalar_type() == at::kLong,
                 "token ids must be contiguous int64");
  at::Tensor out = at::empty({tokens.size(0), tokens.size(1), table.size(1)}, table.options());
  gpu::embed({.type = gpu_type(out.scalar_type()),
              .table = table.const_data_ptr(),
              .positions = positions.defined() ? positions.const_data_ptr() : nullptr,
              .tokens = tokens.const_data_ptr<int64_t>(),
              .out = out.data_ptr(),
              .rows = tokens.numel(),
              .context = tokens.size(1),
              .width = table.size(1)},
             context.compute());
  return out;
}

void add_token_gradients_on_gpu(const device::GpuContext& context,
                                at::Tensor& table_gradient,
                                bool is_table_fresh,
                                const at::Tensor& position_gradient,
                                const at::Tensor& tokens,
                                const at::Tensor& dy) {
  require_dense(dy);
  if (is_table_fresh) {
    table_gradient.zero_();  // nobody has written it yet, and this touches a few rows alone
  }
  const int64_t vocabulary = table_gradient.size(0);
  const int64_t width = table_gradient.size(1);
  const at::Tensor workspace =
      bytes_like(dy, gpu::embedding_backward_workspace_bytes(tokens.numel(), width, vocabulary));
  gpu::embed_backward(
      {.type = gpu_type(dy.scalar_type()),
       .gradient = dy.const_data_ptr(),
       .tokens = tokens.const_data_ptr<int64_t>(),
       .table_gradient = table_gradient.data_ptr<float>(),
       .position_gradient =
           position_gradient.defined() ? position_gradient.data_ptr<float>() : nullptr,
       .rows = tokens.numel(),
       .context = tokens.size(1),
       .width = width,
       .vocabulary = vocabulary,
       .workspace = workspace.data_ptr()},
      context.compute());
}

}  // namespace penstock::model
