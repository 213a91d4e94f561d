// Root-mean-square norm on the CPU, for hand-written layers. Works below autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace penstock::model {

struct RmsNormed {
  at::Tensor out;      // as x
  at::Tensor inverse;  // 1 / rms of each row, float32
};
// x is [rows, width], float32 or bfloat16; scale is float32.
RmsNormed rms_norm(const at::Tensor& x, const at::Tensor& scale, double epsilon);

struct RmsNormBackward {
  const at::Tensor &x, &scale, &inverse;
};
// The gradient of x, in the place of dy, plus `residual` where that is defined; adds that of scale.
at::Tensor rms_norm_backward(const RmsNormBackward& saved,
                             at::Tensor dy,
                             const at::Tensor& residual,
                             at::Tensor& scale_gradient);

}  // namespace penstock::model
