#include "penstock/gpu/check.h"

#include <cuda_runtime.h>

#include "penstock/base/units.h"

namespace penstock::gpu {

GpuError::GpuError(const char* call, const std::string& reason, const char* file, int line)
    : Error(ExitCode::Internal,
            cat("the GPU call ", call, " failed at ", file, ":", line, ": ", reason)) {}

namespace {

struct DeviceMemory {
  int64_t free = 0, all = 0;
};

DeviceMemory device_memory() {
  size_t free_bytes = 0, all_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &all_bytes) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(all_bytes)};
}

[[noreturn]] void fail_out_of_memory(const DeviceMemory& memory) {
  throw OutOfMemory(cat("the GPU is out of memory: ",
                        format_bytes(memory.free),
                        " of ",
                        format_bytes(memory.all),
                        " are free; other programs may use it too (nvidia-smi lists them)"));
}

}  // namespace

void fail_cuda(cudaError_t status, const char* call, const char* file, int line) {
  static_cast<void>(cudaGetLastError());  // or the next check would find this one again
  if (status == cudaErrorMemoryAllocation) {
    fail_out_of_memory(device_memory());
  }
  throw GpuError(
      call, cat(cudaGetErrorName(status), " (", cudaGetErrorString(status), ")"), file, line);
}

void fail_library(const char* call, const std::string& reason, const char* file, int line) {
  static_cast<void>(cudaGetLastError());
  constexpr int64_t kNextToNothing = int64_t{256} << 20;
  const DeviceMemory memory = device_memory();
  if (memory.all > 0 && memory.free < kNextToNothing) {
    fail_out_of_memory(memory);
  }
  throw GpuError(call, reason, file, line);
}

}  // namespace penstock::gpu
