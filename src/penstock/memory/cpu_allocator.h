// The allocator behind every LibTorch tensor on the CPU. It counts bytes exactly, and it keeps
// freed blocks for the next step: a training step asks for the same sizes again and again, and
// fresh pages from the kernel cost more than many of the operations that fill them.
#pragma once

#include <cstdint>

namespace penstock::memory {

// Makes it LibTorch's CPU allocator. Call before the first tensor is made; further calls do
// nothing.
void install_cpu_allocator();
bool is_cpu_allocator_installed();

struct CpuUsage {
  int64_t current_bytes = 0;  // held by live tensors
  int64_t peak_bytes = 0;     // most that was held since the last reset_cpu_peak()
  int64_t cached_bytes =
      0;  // freed by tensors, kept for reuse; at most a quarter of the peak and 64 MiB
};
CpuUsage cpu_usage();

// The peak starts again from what is held now.
void reset_cpu_peak();

// Gives cached blocks back to the system.
void release_cpu_cache();

}  // namespace penstock::memory
