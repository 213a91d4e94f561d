#include "penstock/model/gpt2/gpu.h"

#include <ATen/ATen.h>

namespace penstock::model {

Chain make_gpt2_for_gpu(const Gpt2Shape& shape, std::shared_ptr<device::GpuContext> context) {
  Chain chain;
  chain.add(make_gpu_embedding(shape, context));
  for (int64_t block = 0; block < shape.layers; ++block) {
    chain.add(make_gpu_attention(shape, block, context));
    chain.add(make_gpu_mlp(shape, block, context));
  }
  chain.end_with(make_gpu_head(shape, context));
  return chain;
}

}  // namespace penstock::model
