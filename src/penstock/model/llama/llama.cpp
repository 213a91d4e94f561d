#include "penstock/model/llama/llama.h"

#include <ATen/ATen.h>

namespace penstock::model {

std::shared_ptr<const kernels::RotaryTable> make_rotary(const LlamaShape& shape) {
  return std::make_shared<const kernels::RotaryTable>(
      shape.context,
      kernels::rotary_frequencies(shape.head_width(), shape.rope_theta, shape.rope_scaling));
}

Chain make_llama(const LlamaShape& shape) {
  Chain chain;
  chain.add(make_llama_embedding(shape));
  const std::shared_ptr<const kernels::RotaryTable> rotary = make_rotary(shape);
  for (int64_t block = 0; block < shape.layers; ++block) {
    chain.add(make_llama_attention(shape, block, rotary));
    chain.add(make_llama_mlp(shape, block));
  }
  chain.end_with(make_llama_head(shape));
  return chain;
}

}  // namespace penstock::model
