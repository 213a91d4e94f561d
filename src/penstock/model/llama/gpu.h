// Llama's chain for a GPU: the same layers and parameters as model/llama/llama.h, of cuBLASLt's
// GEMMs, cuDNN's attention and a few kernels of ours. See docs/gpu.md.
#pragma once

#include <memory>

#include "penstock/device/device.h"
#include "penstock/model/chain.h"
#include "penstock/model/llama/llama.h"

namespace penstock::model {

// Throws InternalError in builds without CUDA: no device can have been opened then. Throws
// ConfigError where heads are wider than the kernels take.
Chain make_llama_for_gpu(const LlamaShape& shape, std::shared_ptr<device::GpuContext> context);

// The pieces, one source each: gpu_embedding.cpp, ...
std::unique_ptr<Layer> make_llama_gpu_embedding(const LlamaShape& shape,
                                                std::shared_ptr<device::GpuContext> context);
std::unique_ptr<Layer> make_llama_gpu_attention(const LlamaShape& shape,
                                                int64_t block,
                                                std::shared_ptr<device::GpuContext> context);
std::unique_ptr<Layer> make_llama_gpu_mlp(const LlamaShape& shape,
                                          int64_t block,
                                          std::shared_ptr<device::GpuContext> context);
std::unique_ptr<Loss> make_llama_gpu_head(const LlamaShape& shape,
                                          std::shared_ptr<device::GpuContext> context);

}  // namespace penstock::model
