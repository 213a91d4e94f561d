// The optimizers on a GPU: everything about a step is decided on the device, nothing waits for the
// host. Internal to optimizer.cpp.
#pragma once

#include <memory>

#include "penstock/kernels/optimizers.h"
#include "penstock/optim/optimizer.h"

namespace penstock::optim {

// Throws InternalError in builds without CUDA.
std::unique_ptr<Optimizer> make_gpu_optimizer(const config::TrainOptions& train,
                                              const model::Parameters& parameters);

// For step number `step`, counted from 1.
kernels::AdamSettings adam_settings(const config::TrainOptions& train,
                                    const Rate& rate,
                                    int64_t step);

}  // namespace penstock::optim
