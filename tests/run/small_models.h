// Small chains with everything that makes recomputation hard: dropout, tied weights, modules that
// need their output; and a batch for them.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "penstock/base/text.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/llama/llama.h"
#include "penstock/model/module_layer.h"
#include "penstock/run/plain_step.h"

#include "support/random_tensor.h"

namespace penstock::test {

inline model::Chain small_gpt2(double dropout, int64_t blocks = 3) {
  return model::make_gpt2({.layers = blocks,
                           .width = 48,
                           .heads = 4,
                           .context = 20,
                           .vocabulary = 61,
                           .dropout = dropout});
}

inline model::Chain small_llama(int64_t blocks = 3) {
  return model::make_llama({.layers = blocks,
                            .width = 48,
                            .heads = 4,
                            .kv_heads = 2,
                            .hidden = 80,
                            .context = 20,
                            .vocabulary = 61,
                            .rope_scaling = {.factor = 4, .original_context = 10},
                            .is_tied = true});
}

inline run::StepInput token_batch(int64_t samples, int64_t micro_batches) {
  return {.batch = {{"inputs", random_tokens({samples, 20}, 61, 7)},
                    {"targets", random_tokens({samples, 20}, 61, 8)}},
          .first_sample = 40,
          .micro_batches = micro_batches,
          .seed = 5,
          .step = 6};
}

// The first samples of a batch, in storage of their own.
inline model::Fields first_rows(const model::Fields& batch, int64_t count) {
  model::Fields rows = run::rows_of(batch, 0, count);
  for (auto& [name, tensor] : rows) {
    tensor = tensor.clone();
  }
  return rows;
}

// tanh keeps its output for backward: the graph shares storage with what comes out.
inline model::Chain module_chain(int64_t layers) {
  model::Chain chain;
  for (int64_t i = 0; i < layers; ++i) {
    torch::nn::Linear part(16, 16);
    chain.add(
        model::make_module_layer(cat("module ", i), part.ptr(), [part](const model::Tensors& x) {
          return model::Tensors{at::tanh(part.ptr()->forward(x[0]))};
        }));
  }
  chain.end_with(model::function_loss("loss", [](const at::Tensor& out, const at::Tensor& target) {
    return at::sum(at::square(out - target));
  }));
  return chain;
}

}  // namespace penstock::test
