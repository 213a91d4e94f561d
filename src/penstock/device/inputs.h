// Parts of a batch, which comes from the CPU, as tensors where a rank computes.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/device/device.h"

namespace penstock::device {

class Inputs {
 public:
  explicit Inputs(const Device& device) : device_(device) {}

  // A tensor of its own with what is in `part`. A place, counted from 0, takes one part of each step;
  // all that has to do with it is done when the step ends. is_fixed: the same tensor in every step,
  // which a recorded step goes on reading.
  at::Tensor bring(size_t place, const at::Tensor& part, bool is_fixed);
  // Nothing is recorded any more.
  void forget_fixed() { fixed_.clear(); }

 private:
  at::Tensor upload(size_t place, const at::Tensor& part, bool is_fixed);

  Device device_;
  std::vector<at::Tensor> staged_, fixed_;  // GPU, by place: pinned on the host, and on the device
};

}  // namespace penstock::device
