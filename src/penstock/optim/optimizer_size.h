// What an optimizer holds, for those who plan memory and for the optimizer itself.
#pragma once

#include <cstdint>

#include "penstock/config/recipe.h"
#include "penstock/plan/inventory.h"

namespace penstock::optim {

// Of a rank with this inventory.
plan::OptimizerSize optimizer_size(const config::TrainOptions& train,
                                   const plan::Inventory& inventory);

// 1-bit optimizers: of a tensor of so many elements; of those, the most that one replica averages.
int64_t sign_blocks(int64_t count);
int64_t server_blocks(int64_t blocks, int32_t replicas);
// What a replica sends and receives through.
int64_t onebit_staging_bytes(int32_t replicas);

}  // namespace penstock::optim
