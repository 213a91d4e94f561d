#include "penstock/model/dropout.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/base/philox.h"
#include "penstock/kernels/dropout.h"
#include "penstock/model/gpu_dropout.h"

namespace penstock::model {

namespace {

kernels::DropoutMask first_mask(const Dropout& dropout) {
  const Pass& pass = dropout.pass;
  const PhiloxKey key = philox_key(
      pass.seed, mix_bits(static_cast<uint64_t>(pass.step)) + static_cast<uint64_t>(pass.layer));
  return kernels::dropout_mask(
      key, dropout.site, static_cast<uint64_t>(pass.first_sample), dropout.share);
}

template <typename T>
void drop_elements(T* values, int64_t samples, int64_t per_sample, const Dropout& dropout) {
  using kernels::kDropoutGroup;
  const kernels::DropoutMask first_sample = first_mask(dropout);
  const int64_t groups = (per_sample + kDropoutGroup - 1) / kDropoutGroup;
  at::parallel_for(0, samples * groups, 256, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t sample = begin / groups;
      const int64_t group = begin % groups;
      const int64_t next = std::min(end, (sample + 1) * groups);
      const int64_t first = group * kDropoutGroup;
      const int64_t count = std::min((group + next - begin) * kDropoutGroup, per_sample) - first;
      kernels::DropoutMask mask = first_sample;
      mask.sample += static_cast<uint64_t>(sample);
      kernels::apply_dropout(mask, first, count, values + sample * per_sample + first);
      begin = next;
    }
  });
}

}  // namespace

void apply_dropout(at::Tensor& x, const Dropout& dropout) {
  if (!dropout.is_active() || x.numel() == 0) {
    return;
  }
  PENSTOCK_CHECK(x.is_contiguous(), "dropout needs a contiguous tensor");
  if (x.is_cuda()) {
    return apply_gpu_dropout(x, first_mask(dropout));
  }
  const int64_t samples = x.size(0);
  const int64_t per_sample = x.numel() / samples;
  if (x.scalar_type() == at::kFloat) {
    drop_elements(x.data_ptr<float>(), samples, per_sample, dropout);
  } else {
    PENSTOCK_CHECK(x.scalar_type() == at::kBFloat16, "dropout has no kernel for ", x.scalar_type());
    drop_elements(static_cast<kernels::Bf16*>(x.data_ptr()), samples, per_sample, dropout);
  }
}

at::Tensor dropout_backward(const at::Tensor& gradient, const Dropout& dropout) {
  if (!dropout.is_active()) {
    return gradient;
  }
  at::Tensor dropped = gradient.clone();
  apply_dropout(dropped, dropout);
  return dropped;
}

}  // namespace penstock::model
