// The allocator of a GPU gave up: because of a limit, or because the device has no more. Internal
// to the accounts of GPUs.
#pragma once

#include <cstdint>

namespace penstock::memory {

struct DeviceMemory {
  int64_t free, all;
};
DeviceMemory memory_of_device(int device);

// `limit_bytes` holds for all that the allocator takes from the device; 0: none. `what` are the
// allocator's words. Throws LimitError where the limit is why, else an OutOfMemory that says who
// holds what.
[[noreturn]] void fail_gpu_out_of_memory(int device, int64_t limit_bytes, const char* what);

}  // namespace penstock::memory
