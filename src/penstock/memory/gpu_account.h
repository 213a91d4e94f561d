// A GPU's account: LibTorch's caching allocator keeps the books, and is held to the limit.
#pragma once

#include "penstock/memory/account.h"

namespace penstock::memory {

// Bytes are those of the blocks that tensors occupy, as the allocator counts them. With a limit,
// what the allocator has from the device, cached blocks included, stays within it.
Account& gpu_account(int device);

// What a tensor of so many bytes occupies in those books.
inline int64_t gpu_block_bytes(int64_t bytes) {
  constexpr int64_t kUnit = 512;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

}  // namespace penstock::memory
