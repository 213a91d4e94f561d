#include "penstock/gpu/check.h"

#include <cuda_runtime.h>

#include "penstock/base/units.h"

namespace penstock::gpu {

GpuError::GpuError(const char* call, const std::string& reason, const char* file, int line)
    : Error(ExitCode::Internal,
            cat("the GPU call ", call, " failed at ", file, ":", line, ": ", reason)) {}

void fail_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaErrorMemoryAllocation) {
    size_t free_bytes = 0, all_bytes = 0;
    static_cast<void>(cudaGetLastError());
    static_cast<void>(cudaMemGetInfo(&free_bytes, &all_bytes));
    throw Error(ExitCode::Negative,
                cat("the GPU is out of memory: ",
                    format_bytes(static_cast<int64_t>(free_bytes)),
                    " of ",
                    format_bytes(static_cast<int64_t>(all_bytes)),
                    " are free; other programs may use it too (nvidia-smi lists them)"));
  }
  throw GpuError(
      call, cat(cudaGetErrorName(status), " (", cudaGetErrorString(status), ")"), file, line);
}

}  // namespace penstock::gpu
