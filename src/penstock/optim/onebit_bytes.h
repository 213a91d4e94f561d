// What the 1-bit optimizers hold, for those who plan memory before there is an optimizer.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/config/recipe.h"

namespace penstock::optim {

// Of a tensor of so many elements; of those, the most that one replica averages.
int64_t sign_blocks(int64_t count);
int64_t server_blocks(int64_t blocks, int32_t replicas);

// What a replica sends and receives through.
int64_t onebit_staging_bytes(int32_t replicas);

struct OneBitBytes {
  int64_t state = 0;    // all state buffers
  int64_t working = 0;  // held beside them during the whole run
};
struct OneBitElements {
  std::vector<int64_t> parameters;  // elements of each
  int64_t whole = 0;                // of a flat buffer of all, padding included
  int64_t state = 0;                // of a buffer that is laid out as segments are
  int32_t replicas = 1;
};
OneBitBytes onebit_bytes(const config::TrainOptions& train, const OneBitElements& elements);

}  // namespace penstock::optim
