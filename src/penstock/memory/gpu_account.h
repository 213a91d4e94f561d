// A GPU's account: LibTorch's caching allocator keeps the books, and is held to the limit.
#pragma once

#include "penstock/memory/account.h"

namespace penstock::memory {

// Bytes are those of the blocks that tensors occupy, as the allocator counts them. With a limit, what
// the allocator has from the device, cached blocks included, stays within it.
Account& gpu_account(int device);

}  // namespace penstock::memory
