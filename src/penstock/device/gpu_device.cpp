#include <mutex>

#include <cuda_runtime_api.h>

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAStream.h>

#include "penstock/base/error.h"
#include "penstock/device/device.h"
#include "penstock/device/gpu_context.h"

namespace penstock::device {

Device open_gpu(const DeviceOptions& options) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    throw ConfigError(cat("run.device = \"cuda\", but there is no usable GPU here (",
                          status == cudaSuccess ? "none found" : cudaGetErrorString(status),
                          "); use run.device = \"cpu\", or a machine where nvidia-smi shows one"));
  }
  // Blocks that grow in place: what one layer frees serves the next, whatever its size, so that a
  // limit holds for what is reserved as well as for what is used.
  static std::once_flag once;
  std::call_once(once,
                 [] { c10::CachingAllocator::setAllocatorSettings("expandable_segments:True"); });
  const int index = options.index % count;
  Device device{.where = {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}};
  device.gpu = std::make_shared<GpuContext>(index, options);
  device.own_account = device.gpu->own_account();
  device.most_micro_batches = GpuContext::kLossSlots;
  return device;
}

void require_current(const Device& device) {
  PENSTOCK_CHECK(
      !device.is_gpu() ||
          c10::cuda::getCurrentCUDAStream(device.where.index()).stream() == device.gpu->compute(),
      "this thread works on another stream than its device");
}

void set_timing(const Device& device, bool is_on) {
  if (device.is_gpu()) {
    device.gpu->set_timing(is_on && !device.gpu->options().is_deterministic);
  }
}

}  // namespace penstock::device
