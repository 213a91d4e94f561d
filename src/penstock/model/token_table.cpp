#include "penstock/model/token_table.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/kernels/embedding.h"

namespace penstock::model {

namespace {

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

template <typename T>
void embed_rows(const at::Tensor& table,
                const at::Tensor& positions,
                const at::Tensor& tokens,
                at::Tensor& out) {
  const kernels::EmbeddingForward<T> work{
      .table = static_cast<const T*>(table.const_data_ptr()),
      .positions =
          positions.defined() ? static_cast<const T*>(positions.const_data_ptr()) : nullptr,
      .tokens = tokens.const_data_ptr<int64_t>(),
      .out = static_cast<T*>(out.data_ptr()),
      .context = tokens.size(1),
      .width = out.size(2)};
  at::parallel_for(
      0, tokens.numel(), 64, [&](int64_t begin, int64_t end) { kernels::embed(work, begin, end); });
}

template <typename T>
void add_row_gradients(const at::Tensor& table_gradient,
                       const at::Tensor& position_gradient,
                       const at::Tensor& tokens,
                       const at::Tensor& dy) {
  const kernels::EmbeddingBackward<T> work{
      .gradient = static_cast<const T*>(dy.const_data_ptr()),
      .tokens = tokens.const_data_ptr<int64_t>(),
      .table_gradient = table_gradient.data_ptr<float>(),
      .position_gradient =
          position_gradient.defined() ? position_gradient.data_ptr<float>() : nullptr,
      .rows = tokens.numel(),
      .context = tokens.size(1),
      .width = dy.size(2)};
  at::parallel_for(0, work.width, 16, [&](int64_t begin, int64_t end) {
    kernels::embed_backward(work, begin, end);
  });
}

}  // namespace

at::Tensor embed_tokens(const at::Tensor& table,
                        const at::Tensor& positions,
                        const at::Tensor& tokens) {
  require_ids(tokens, table.size(0));
  at::Tensor out = at::empty({tokens.size(0), tokens.size(1), table.size(1)}, table.options());
  if (out.scalar_type() == at::kFloat) {
    embed_rows<float>(table, positions, tokens, out);
  } else {
    embed_rows<kernels::Bf16>(table, positions, tokens, out);
  }
  return out;
}

void add_token_gradients(const at::Tensor& table_gradient,
                         const at::Tensor& position_gradient,
                         const at::Tensor& tokens,
                         const at::Tensor& dy) {
  if (dy.scalar_type() == at::kFloat) {
    add_row_gradients<float>(table_gradient, position_gradient, tokens, dy);
  } else {
    add_row_gradients<kernels::Bf16>(table_gradient, position_gradient, tokens, dy);
  }
}

}  // namespace penstock::model
