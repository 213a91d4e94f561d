#include "penstock/model/gpu_dropout.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>

#include "penstock/gpu/dropout.h"
#include "penstock/model/gpu_ops.h"

namespace penstock::model {

void apply_gpu_dropout(at::Tensor& x, const kernels::DropoutMask& mask) {
  gpu::apply_dropout({.type = gpu_type(x.scalar_type()),
                      .x = x.const_data_ptr(),
                      .out = x.data_ptr(),
                      .samples = x.size(0),
                      .per_sample = x.numel() / x.size(0),
                      .mask = mask},
                     c10::cuda::getCurrentCUDAStream().stream());
}

}  // namespace penstock::model
