// GPT-2's chain for a GPU: the same layers and parameters as model/gpt2/gpt2.h, made of fused kernels.
// See docs/gpu.md.
#pragma once

#include <memory>

#include "penstock/device/device.h"
#include "penstock/model/chain.h"
#include "penstock/model/gpt2/gpt2.h"

namespace penstock::model {

// Throws InternalError in builds without CUDA: no device can have been opened then.
Chain make_gpt2_for_gpu(const Gpt2Shape& shape, std::shared_ptr<device::GpuContext> context);

// The pieces, one source each: gpu_embedding.cpp, ...
std::unique_ptr<Layer> make_gpu_embedding(const Gpt2Shape& shape,
                                          std::shared_ptr<device::GpuContext> context);
std::unique_ptr<Layer> make_gpu_attention(const Gpt2Shape& shape,
                                          int64_t block,
                                          std::shared_ptr<device::GpuContext> context);
std::unique_ptr<Layer> make_gpu_mlp(const Gpt2Shape& shape,
                                    int64_t block,
                                    std::shared_ptr<device::GpuContext> context);
std::unique_ptr<Loss> make_gpu_head(const Gpt2Shape& shape,
                                    std::shared_ptr<device::GpuContext> context);

}  // namespace penstock::model
