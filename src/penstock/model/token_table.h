// Rows of a table by token id, on the CPU, and the gradient back. Works below autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace penstock::model {

// [B, T] ids to [B, T, width]; `positions` may be undefined. Throws InternalError where an id is
// beyond the table.
at::Tensor embed_tokens(const at::Tensor& table,
                        const at::Tensor& positions,
                        const at::Tensor& tokens);

// Adds to the gradients, float32; that of the positions may be undefined.
void add_token_gradients(const at::Tensor& table_gradient,
                         const at::Tensor& position_gradient,
                         const at::Tensor& tokens,
                         const at::Tensor& dy);

}  // namespace penstock::model
