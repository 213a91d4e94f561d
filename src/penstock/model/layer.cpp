#include "penstock/model/layer.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

namespace penstock::model {

int64_t ParameterSpec::count() const {
  int64_t product = 1;
  for (const int64_t size : shape) {
    product *= size;
  }
  return product;
}

int64_t TensorShape::bytes() const {
  int64_t product = static_cast<int64_t>(c10::elementSize(type));
  for (const int64_t size : sizes) {
    product *= size;
  }
  return product;
}

Tensors Layer::backward_input(Weights weights,
                              Gradients gradients,
                              const Tensors& input,
                              Saved saved,
                              const Tensors& output_gradient,
                              const Pass& pass,
                              WeightWork&) const {
  return backward(weights, gradients, input, std::move(saved), output_gradient, pass);
}

void Layer::backward_weight(Weights, Gradients, WeightWork) const {}

int64_t count_targets(const at::Tensor& targets) {
  if (!targets.is_cpu() || !targets.is_contiguous()) {
    return at::sum(targets.ge(0)).item<int64_t>();
  }
  // A plain loop: to wake threads for so little takes longer, and a GPU waits for it.
  const int64_t* values = targets.const_data_ptr<int64_t>();
  return std::count_if(values, values + targets.numel(), [](int64_t value) { return value >= 0; });
}

}  // namespace penstock::model
