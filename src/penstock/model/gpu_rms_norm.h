// Root-mean-square norm on a GPU: the counterpart of rms_norm.h. Works below autograd, on the
// context's compute stream.
#pragma once

#include <ATen/core/Tensor.h>

#include "penstock/device/gpu_context.h"
#include "penstock/model/rms_norm.h"

namespace penstock::model {

// x is [rows, width]; scale is float32.
RmsNormed rms_norm_on_gpu(const device::GpuContext& context,
                          const at::Tensor& x,
                          const at::Tensor& scale,
                          double epsilon);

// The gradient of x, in the place of dy, plus `residual` where that is defined; adds that of scale.
at::Tensor rms_norm_backward_on_gpu(const device::GpuContext& context,
                                    const RmsNormBackward& saved,
                                    at::Tensor dy,
                                    const at::Tensor& residual,
                                    const at::Tensor& scale_gradient);

}  // namespace penstock::model
