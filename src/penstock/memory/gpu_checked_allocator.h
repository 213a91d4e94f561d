// LibTorch's allocator for GPUs, asked before each allocation. Its own limit is one for a device; a
// rank that shares the device with others has one of its own.
#pragma once

#include <cstddef>

namespace penstock::memory {

// Called with the bytes that are wanted and the stream that they are wanted for; refuses by
// throwing.
using AllocationCheck = void (*)(size_t bytes, void* stream);

// Once per process. All that it has is LibTorch's: blocks from before and after are the same.
void install_checked_allocator(AllocationCheck check);

}  // namespace penstock::memory
