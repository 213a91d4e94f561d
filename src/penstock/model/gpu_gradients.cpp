#include "penstock/model/gpu_gradients.h"

#include <cuda_runtime_api.h>

#include <ATen/ATen.h>

#include "penstock/device/gpu_context.h"
#include "penstock/gpu/check.h"
#include "penstock/model/parameters.h"

namespace penstock::model {

void empty_gpu_gradients(Parameters& parameters) {
  device::GpuContext& context = *parameters.device().gpu;
  float* flat = parameters.flat_gradients().data_ptr<float>();
  // Neighbours that must be zeroed go in one call.
  int64_t first = 0;
  const auto zero_until = [&](int64_t end) {
    if (end > first) {
      PENSTOCK_CUDA(cudaMemsetAsync(
          flat + first, 0, static_cast<size_t>(end - first) * sizeof(float), context.compute()));
    }
  };
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.spec.is_gradient_overwritten) {
      context.mark_empty(parameter.gradient.data_ptr());
      zero_until(parameter.offset);
      first = parameter.offset + parameter.spec.count();
    }
  }
  zero_until(parameters.flat_gradients().numel());
}

void complete_gpu_gradients(Parameters& parameters) {
  device::GpuContext& context = *parameters.device().gpu;
  for (const Parameter& parameter : parameters.all()) {
    if (context.take_empty(parameter.gradient.data_ptr())) {
      at::Tensor(parameter.gradient).zero_();
    }
  }
}

void forget_gpu_gradients(Parameters& parameters) {
  for (const Parameter& parameter : parameters.all()) {
    parameters.device().gpu->take_empty(parameter.gradient.data_ptr());
  }
}

}  // namespace penstock::model
