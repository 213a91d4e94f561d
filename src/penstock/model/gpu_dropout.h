// Internal to dropout.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include "penstock/kernels/dropout.h"

namespace penstock::model {

// x is [samples, ...] on a GPU; `mask` is that of its first sample.
void apply_gpu_dropout(at::Tensor& x, const kernels::DropoutMask& mask);

}  // namespace penstock::model
