// Rows of a table by token id, on a GPU, and the gradient back: the counterpart of token_table.h.
// Works below autograd, on the context's compute stream.
#pragma once

#include <ATen/core/Tensor.h>

#include "penstock/device/gpu_context.h"
#include "penstock/model/layer.h"

namespace penstock::model {

// [B, T] ids to [B, T, width]; `positions` may be undefined. Ids are checked against the vocabulary
// by who reads data.
at::Tensor embed_tokens_on_gpu(const device::GpuContext& context,
                               const at::Tensor& table,
                               const at::Tensor& positions,
                               const at::Tensor& tokens);

// Adds to the gradients, float32; that of the positions may be undefined. The table's: cleared
// before, where it is fresh.
void add_token_gradients_on_gpu(const device::GpuContext& context,
                                at::Tensor& table_gradient,
                                bool is_table_fresh,
                                const at::Tensor& position_gradient,
                                const at::Tensor& tokens,
                                const at::Tensor& dy);

}  // namespace penstock::model
