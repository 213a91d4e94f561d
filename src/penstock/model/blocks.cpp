#include "penstock/model/blocks.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/base/philox.h"
#include "penstock/kernels/dropout.h"

namespace penstock::model {

namespace {

constexpr double kNormEpsilon = 1e-5;

template <typename T>
void drop_elements(
    T* values, int64_t samples, int64_t per_sample, double share, const Pass& pass, uint32_t site) {
  using kernels::kDropoutGroup;
  const PhiloxKey key = philox_key(
      pass.seed, mix_bits(static_cast<uint64_t>(pass.step)) + static_cast<uint64_t>(pass.layer));
  const int64_t groups = (per_sample + kDropoutGroup - 1) / kDropoutGroup;
  at::parallel_for(0, samples * groups, 256, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t sample = begin / groups;
      const int64_t group = begin % groups;
      const int64_t next = std::min(end, (sample + 1) * groups);
      const int64_t first = group * kDropoutGroup;
      const int64_t count = std::min((group + next - begin) * kDropoutGroup, per_sample) - first;
      const kernels::DropoutMask mask = kernels::dropout_mask(
          key, site, static_cast<uint64_t>(pass.first_sample + sample), share);
      kernels::apply_dropout(mask, first, count, values + sample * per_sample + first);
      begin = next;
    }
  });
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::addmm(bias, x, weight);
}

at::Tensor linear_onto(const at::Tensor& residual,
                       const at::Tensor& x,
                       const at::Tensor& weight,
                       const at::Tensor& bias) {
  at::Tensor out = at::add(residual, bias);
  out.addmm_(x, weight);
  return out;
}

void add_product(at::Tensor& weight_gradient, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) {
    weight_gradient.addmm_(a.t(), b);
  } else {
    weight_gradient.add_(at::mm(a.t(), b));
  }
}

void add_linear_gradients(at::Tensor& weight_gradient,
                          at::Tensor& bias_gradient,
                          const at::Tensor& x,
                          const at::Tensor& dy) {
  add_product(weight_gradient, x, dy);
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

void apply_dropout(at::Tensor& x, double share, const Pass& pass, uint32_t site) {
  if (share == 0 || !pass.is_training || x.numel() == 0) {
    return;
  }
  PENSTOCK_CHECK(x.is_contiguous(), "dropout needs a contiguous tensor");
  const int64_t samples = x.size(0);
  const int64_t per_sample = x.numel() / samples;
  if (x.scalar_type() == at::kFloat) {
    drop_elements(x.data_ptr<float>(), samples, per_sample, share, pass, site);
  } else {
    PENSTOCK_CHECK(x.scalar_type() == at::kBFloat16, "dropout has no kernel for ", x.scalar_type());
    drop_elements(
        static_cast<kernels::Bf16*>(x.data_ptr()), samples, per_sample, share, pass, site);
  }
}

}  // namespace penstock::model
