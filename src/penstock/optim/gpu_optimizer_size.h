// What an optimizer holds on a GPU beside its state. Needs no CUDA: plans for GPUs are made anywhere.
#pragma once

#include <cstdint>

#include "penstock/config/recipe.h"
#include "penstock/plan/inventory.h"

namespace penstock::optim {

// The tables that the update's kernels walk.
struct GpuUpdateSizes {
  int64_t chunks = 0;
  int64_t parameters = 0;
};
GpuUpdateSizes gpu_update_sizes(const plan::Inventory& inventory);

// As optimizer_size(): the same state, other workspaces. Each of them is an allocation.
plan::OptimizerSize gpu_optimizer_size(const config::TrainOptions& train,
                                       const plan::Inventory& inventory);

}  // namespace penstock::optim
