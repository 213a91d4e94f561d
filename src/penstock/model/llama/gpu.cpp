#include "penstock/model/llama/gpu.h"

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/gpu/rotary.h"

namespace penstock::model {

Chain make_llama_for_gpu(const LlamaShape& shape, std::shared_ptr<device::GpuContext> context) {
  constexpr int64_t kMostFeatures = 2 * gpu::RotaryFrequencies::kMost;
  if (shape.head_width() > kMostFeatures) {
    throw ConfigError(cat("heads of ",
                          shape.head_width(),
                          " features (model.width = ",
                          shape.width,
                          ", model.heads = ",
                          shape.heads,
                          ") are more than the ",
                          kMostFeatures,
                          " that a GPU's layers take; set more model.heads"));
  }
  Chain chain;
  chain.add(make_llama_gpu_embedding(shape, context));
  for (int64_t block = 0; block < shape.layers; ++block) {
    chain.add(make_llama_gpu_attention(shape, block, context));
    chain.add(make_llama_gpu_mlp(shape, block, context));
  }
  chain.end_with(make_llama_gpu_head(shape, context));
  return chain;
}

}  // namespace penstock::model
