// Every call to CUDA is checked: PENSTOCK_CUDA(cudaMemsetAsync(...)) throws GpuError with the call,
// the place and CUDA's own words. After a launch: PENSTOCK_CUDA(cudaGetLastError()).
#pragma once

#include <string>

#include <cuda_runtime_api.h>

#include "penstock/base/error.h"

namespace penstock::gpu {

// A call failed that should not: our bug, or a broken device. Exit code 3.
class GpuError : public Error {
 public:
  GpuError(const char* call, const std::string& reason, const char* file, int line);
};

// Throws GpuError, or OutOfMemory with a line that says what is free and who may hold the rest.
[[noreturn]] void fail_cuda(cudaError_t status, const char* call, const char* file, int line);

// The same for a library that does not say why it failed: with next to nothing free on the device,
// that is why.
[[noreturn]] void fail_library(const char* call,
                               const std::string& reason,
                               const char* file,
                               int line);

}  // namespace penstock::gpu

#define PENSTOCK_CUDA(call)                                                   \
  do {                                                                        \
    const cudaError_t penstock_status = (call);                               \
    if (penstock_status != cudaSuccess) {                                     \
      ::penstock::gpu::fail_cuda(penstock_status, #call, __FILE__, __LINE__); \
    }                                                                         \
  } while (false)
