#include "penstock/model/gpu_rms_norm.h"

#include <ATen/ATen.h>

#include "penstock/gpu/norm.h"
#include "penstock/model/gpu_tensors.h"

namespace penstock::model {

RmsNormed rms_norm_on_gpu(const device::GpuContext& context,
                          const at::Tensor& x,
                          const at::Tensor& scale,
                          double epsilon) {
  require_dense(x);
  RmsNormed made{at::empty_like(x), floats_like(x, x.size(0))};
  gpu::rms_norm({.type = gpu_type(x.scalar_type()),
                 .x = x.const_data_ptr(),
                 .scale = scale.const_data_ptr<float>(),
                 .shift = nullptr,
                 .out = made.out.data_ptr(),
                 .mean = nullptr,
                 .inverse_deviation = made.inverse.data_ptr<float>(),
                 .rows = x.size(0),
                 .width = x.size(1),
                 .epsilon = static_cast<float>(epsilon)},
                context.compute());
  return made;
}

at::Tensor rms_norm_backward_on_gpu(const device::GpuContext& context,
                                    const RmsNormBackward& saved,
                                    at::Tensor dy,
                                    const at::Tensor& residual,
                                    const at::Tensor& scale_gradient) {
  require_dense(dy);
  require_dense(saved.x);
  const int64_t width = dy.size(1);
  const at::Tensor workspace = floats_like(dy, gpu::norm_backward_workspace_floats(width));
  gpu::rms_norm_backward(
      {.type = gpu_type(dy.scalar_type()),
       .dy = dy.const_data_ptr(),
       .x = saved.x.const_data_ptr(),
       .scale = saved.scale.const_data_ptr<float>(),
       .mean = nullptr,
       .inverse_deviation = saved.inverse.const_data_ptr<float>(),
       .residual_gradient = residual.defined() ? residual.const_data_ptr() : nullptr,
       .dx = dy.data_ptr(),
       .scale_gradient = scale_gradient.data_ptr<float>(),
       .shift_gradient = nullptr,
       .dx_column_sums = nullptr,
       .workspace = workspace.data_ptr<float>(),
       .rows = dy.size(0),
       .width = width},
      context.compute());
  return dy;
}

}  // namespace penstock::model
