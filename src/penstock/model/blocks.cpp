#include "penstock/model/blocks.h"

#include <ATen/ATen.h>

namespace penstock::model {

namespace {

constexpr double kNormEpsilon = 1e-5;

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::addmm(bias, x, weight);
}

void add_matmul(at::Tensor& weight_gradient, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) {
    weight_gradient.addmm_(a.t(), b);
  } else {
    weight_gradient.add_(at::mm(a.t(), b));
  }
}

void add_linear_gradients(at::Tensor& weight_gradient,
                          at::Tensor& bias_gradient,
                          at::Tensor x,
                          at::Tensor dy) {
  add_matmul(weight_gradient, x, dy);
  bias_gradient.add_(at::sum(dy, /*dim=*/0, /*keepdim=*/false, at::kFloat));
}

at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight) {
  return at::mm(dy, weight.t());
}

Normed layer_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) {
  auto [out, mean, inverse_deviation] =
      at::native_layer_norm(x, {x.size(-1)}, scale, shift, kNormEpsilon);
  return {out, mean, inverse_deviation};
}

at::Tensor layer_norm_backward(const NormBackward& saved,
                               const at::Tensor& dy,
                               at::Tensor& scale_gradient,
                               at::Tensor& shift_gradient) {
  const auto [dx, scale_part, shift_part] = at::native_layer_norm_backward(dy,
                                                                           saved.x,
                                                                           {saved.x.size(-1)},
                                                                           saved.mean,
                                                                           saved.inverse_deviation,
                                                                           saved.scale,
                                                                           saved.shift,
                                                                           {true, true, true});
  scale_gradient.add_(scale_part);
  shift_gradient.add_(shift_part);
  return dx;
}

at::Tensor add_residual(const at::Tensor& residual,
                        const at::Tensor& x,
                        const at::Tensor& weight,
                        const at::Tensor& bias,
                        const Dropout& dropout) {
  if (dropout.is_active()) {
    at::Tensor out = linear(x, weight, bias).view(residual.sizes());
    apply_dropout(out, dropout);
    return out.add_(residual);
  }
  at::Tensor out = at::add(residual.view({x.size(0), -1}), bias);
  out.addmm_(x, weight);
  return out.view(residual.sizes());
}

}  // namespace penstock::model
