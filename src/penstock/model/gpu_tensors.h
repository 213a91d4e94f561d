// What the tensors of fused layers must be, and how kernels that go by pointer see them.
#pragma once

#include <algorithm>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/gpu/types.h"

namespace penstock::model {

inline gpu::Type gpu_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return gpu::Type::Float32;
    case at::kBFloat16:
      return gpu::Type::BFloat16;
    case at::kHalf:
      return gpu::Type::Float16;
    default:
      throw InternalError(cat("no GPU kernels for ", toString(type)));
  }
}

inline void require_dense(const at::Tensor& tensor) {
  PENSTOCK_CHECK(tensor.is_cuda() && tensor.is_contiguous(),
                 "a kernel needs a dense tensor on the GPU");
}

inline at::Tensor floats_like(const at::Tensor& near, int64_t count) {
  return at::empty({count}, near.options().dtype(at::kFloat));
}

inline at::Tensor bytes_like(const at::Tensor& near, int64_t bytes) {
  return at::empty({std::max<int64_t>(bytes, 1)}, near.options().dtype(at::kByte));
}

}  // namespace penstock::model
