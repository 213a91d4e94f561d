#include "penstock/device/inputs.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>

#include "penstock/base/error.h"

namespace penstock::device {

at::Tensor Inputs::bring(size_t place, const at::Tensor& part, bool is_fixed) {
  PENSTOCK_CHECK(part.is_cpu(), "a batch comes from the CPU");
  return device_.is_gpu() ? upload(place, part, is_fixed) : part.clone();
}

// By way of pinned memory, from which a copy to the device needs no waiting. The memory can be used
// again at the next step, for every step ends with the device's work done.
at::Tensor Inputs::upload(size_t place, const at::Tensor& part, bool is_fixed) {
  staged_.resize(std::max(staged_.size(), place + 1));
  fixed_.resize(std::max(fixed_.size(), place + 1));
  at::Tensor& staged = staged_[place];
  if (!staged.defined() || staged.sizes() != part.sizes()) {
    staged = at::empty(part.sizes(), part.options().pinned_memory(true));
  }
  std::memcpy(staged.data_ptr(), part.contiguous().const_data_ptr(), part.nbytes());
  at::Tensor& fixed = fixed_[place];
  if (is_fixed && fixed.defined()) {
    PENSTOCK_CHECK(fixed.sizes() == part.sizes(), "the batches of a recorded step have one size");
    return fixed.copy_(staged, /*non_blocking=*/true);
  }
  const at::Tensor made = staged.to(device_.where, /*non_blocking=*/true);
  if (is_fixed) {
    fixed = made;
  }
  return made;
}

}  // namespace penstock::device
