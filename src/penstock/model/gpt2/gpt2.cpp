#include "penstock/model/gpt2/gpt2.h"

#include <ATen/ATen.h>

namespace penstock::model {

Chain make_gpt2(const Gpt2Shape& shape) {
  Chain chain;
  chain.add(make_gpt2_embedding(shape));
  for (int64_t block = 0; block < shape.layers; ++block) {
    chain.add(make_gpt2_attention(shape, block));
    chain.add(make_gpt2_mlp(shape, block));
  }
  chain.end_with(make_gpt2_head(shape));
  return chain;
}

}  // namespace penstock::model
