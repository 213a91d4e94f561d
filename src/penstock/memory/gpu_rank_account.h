// Accounts of ranks that are threads of one process and may share a GPU. LibTorch's caching
// allocator has one book for a whole device; each rank computes on a stream of its own, so what is
// allocated there is the rank's.
#pragma once

#include "penstock/gpu/types.h"
#include "penstock/memory/account.h"

namespace penstock::memory {

// The account of what is allocated on this stream of the device from now on; never destroyed, for
// tensors may outlive their rank. Its limit holds for the blocks that tensors occupy: an allocation
// that would break it is refused. Once all ranks of a device have a limit, what the allocator takes
// from it, cached blocks included, stays within their sum.
Account& open_gpu_rank_account(int device, gpu::Stream compute);

// The rank has ended: its stream may become another's, and its limit is no part of the sum.
void close_gpu_rank_account(Account& account);

}  // namespace penstock::memory
