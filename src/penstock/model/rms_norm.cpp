#include "penstock/model/rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/kernels/rms_norm.h"

namespace penstock::model {

namespace {

constexpr int64_t kRowsAtLeast = 16;     // for a thread
constexpr int64_t kColumnsAtLeast = 64;  // likewise

template <typename T>
const T* data(const at::Tensor& tensor) {
  PENSTOCK_CHECK(!tensor.defined() || tensor.is_contiguous(), "a norm of what is not contiguous");
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}

template <typename T>
void forward(const at::Tensor& x, const at::Tensor& scale, double epsilon, RmsNormed& made) {
  const kernels::RmsNormForward<T> work{.x = data<T>(x),
                                        .scale = data<float>(scale),
                                        .out = static_cast<T*>(made.out.data_ptr()),
                                        .inverse = made.inverse.data_ptr<float>(),
                                        .width = x.size(1),
                                        .epsilon = static_cast<float>(epsilon)};
  at::parallel_for(0, x.size(0), kRowsAtLeast, [&](int64_t begin, int64_t end) {
    kernels::rms_norm(work, begin, end);
  });
}

template <typename T>
void backward(const RmsNormBackward& saved,
              at::Tensor& dy,
              const at::Tensor& residual,
              at::Tensor& scale_gradient) {
  const int64_t width = dy.size(1);
  const kernels::RmsNormScale<T> scale{.dy = data<T>(dy),
                                       .x = data<T>(saved.x),
                                       .inverse = data<float>(saved.inverse),
                                       .scale_gradient = scale_gradient.data_ptr<float>(),
                                       .rows = dy.size(0),
                                       .width = width};
  at::parallel_for(0, width, kColumnsAtLeast, [&](int64_t begin, int64_t end) {
    kernels::add_rms_scale_gradient(scale, begin, end);
  });
  const kernels::RmsNormBackward<T> work{.dy = data<T>(dy),
                                         .x = data<T>(saved.x),
                                         .scale = data<float>(saved.scale),
                                         .inverse = data<float>(saved.inverse),
                                         .residual = data<T>(residual),
                                         .dx = static_cast<T*>(dy.data_ptr()),
                                         .width = width};
  at::parallel_for(0, dy.size(0), kRowsAtLeast, [&](int64_t begin, int64_t end) {
    kernels::rms_norm_backward(work, begin, end);
  });
}

}  // namespace

RmsNormed rms_norm(const at::Tensor& x, const at::Tensor& scale, double epsilon) {
  RmsNormed made{at::empty_like(x), at::empty({x.size(0)}, x.options().dtype(at::kFloat))};
  if (x.scalar_type() == at::kFloat) {
    forward<float>(x, scale, epsilon, made);
  } else {
    forward<kernels::Bf16>(x, scale, epsilon, made);
  }
  return made;
}

at::Tensor rms_norm_backward(const RmsNormBackward& saved,
                             at::Tensor dy,
                             const at::Tensor& residual,
                             at::Tensor& scale_gradient) {
  if (dy.scalar_type() == at::kFloat) {
    backward<float>(saved, dy, residual, scale_gradient);
  } else {
    backward<kernels::Bf16>(saved, dy, residual, scale_gradient);
  }
  return dy;
}

}  // namespace penstock::model
