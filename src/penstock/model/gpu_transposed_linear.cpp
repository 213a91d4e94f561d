#include "penstock/model/gpu_transposed_linear.h"

#include <ATen/ATen.h>

#include "penstock/model/gpu_tensors.h"

namespace penstock::model {

namespace {

// A dense matrix, or columns of one.
void require_rows(const at::Tensor& matrix) {
  PENSTOCK_CHECK(matrix.is_cuda() && matrix.dim() == 2 && matrix.stride(1) == 1,
                 "a GEMM needs rows on the GPU");
}

gpu::Gemm make_gemm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& d) {
  require_rows(a);
  require_rows(b);
  require_rows(d);
  return {.rows = d.size(0),
          .columns = d.size(1),
          .type = gpu_type(a.scalar_type()),
          .a = a.const_data_ptr(),
          .b = b.const_data_ptr(),
          .d = d.data_ptr(),
          .d_type = gpu_type(d.scalar_type()),
          .a_stride = a.stride(0),
          .b_stride = b.stride(0),
          .d_stride = d.stride(0)};
}

gpu::Gemm forward_gemm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) {
  gpu::Gemm gemm = make_gemm(x, weight, out);
  gemm.depth = weight.size(1);
  gemm.is_b_transposed = true;
  return gemm;
}

gpu::Gemm backward_gemm(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& out) {
  gpu::Gemm gemm = make_gemm(dy, weight, out);
  gemm.depth = weight.size(0);
  return gemm;
}

}  // namespace

void GpuTransposedLinear::apply(const at::Tensor& x,
                                const at::Tensor& weight,
                                const at::Tensor& out) const {
  context_->gemms().run(forward_gemm(x, weight, out), context_->compute());
}

at::Tensor GpuTransposedLinear::apply(const at::Tensor& x, const at::Tensor& weight) const {
  const at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  apply(x, weight, out);
  return out;
}

at::Tensor GpuTransposedLinear::add_applied(const at::Tensor& residual,
                                            const at::Tensor& x,
                                            const at::Tensor& weight) const {
  require_dense(residual);
  const at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  gpu::Gemm gemm = forward_gemm(x, weight, out);
  gemm.addend = residual.const_data_ptr();
  context_->gemms().run(gemm, context_->compute());
  return out;
}

at::Tensor GpuTransposedLinear::input_gradient(const at::Tensor& dy,
                                               const at::Tensor& weight) const {
  const at::Tensor out = at::empty({dy.size(0), weight.size(1)}, dy.options());
  context_->gemms().run(backward_gemm(dy, weight, out), context_->compute());
  return out;
}

void GpuTransposedLinear::add_input_gradient(const at::Tensor& gradient,
                                             const at::Tensor& dy,
                                             const at::Tensor& weight) const {
  gpu::Gemm gemm = backward_gemm(dy, weight, gradient);
  gemm.addend = gemm.d;
  context_->gemms().run(gemm, context_->compute());
}

void GpuTransposedLinear::add_weight_gradient(const at::Tensor& weight_gradient,
                                              const at::Tensor& x,
                                              const at::Tensor& dy,
                                              bool overwrites) const {
  gpu::Gemm gemm = make_gemm(dy, x, weight_gradient);
  gemm.depth = x.size(0);
  gemm.is_a_transposed = true;
  gemm.addend = overwrites ? nullptr : gemm.d;
  context_->gemms().run(gemm, context_->compute());
}

}  // namespace penstock::model
