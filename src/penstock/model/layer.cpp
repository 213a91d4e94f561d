#include "penstock/model/layer.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/model/layer_error.h"

namespace penstock::model {

int64_t ParameterSpec::count() const {
  int64_t product = 1;
  for (const int64_t size : shape) {
    product *= size;
  }
  return product;
}

int64_t TensorShape::elements() const {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    product *= size;
  }
  return product;
}

int64_t TensorShape::bytes() const {
  return elements() * static_cast<int64_t>(c10::elementSize(type));
}

int64_t bytes_of(const Shapes& shapes) {
  int64_t sum = 0;
  for (const TensorShape& shape : shapes) {
    sum += shape.bytes();
  }
  return sum;
}

std::string shape_text(const TensorShape& shape) {
  std::string text = cat(c10::toString(shape.type), " [");
  for (size_t i = 0; i < shape.sizes.size(); ++i) {
    text += cat(i == 0 ? "" : ", ", shape.sizes[i]);
  }
  return text + "]";
}

std::string shape_text(const Tensors& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    text += text.empty() ? "" : ", ";
    text += tensor.defined() ? shape_text(TensorShape{tensor.sizes().vec(), tensor.scalar_type()})
                             : std::string("nothing");
  }
  return tensors.size() == 1 ? text : cat("(", text, ")");
}

Shapes Layer::outputs_in_evaluation(const Shapes& inputs, at::ScalarType compute_type) const {
  return size_for(inputs, compute_type).outputs;
}

const std::vector<StateSpec>& Layer::state() const {
  static const std::vector<StateSpec> none;
  return none;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
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

int64_t count_targets(const Tensors& all) {
  const at::Tensor& targets = all[0];
  if (!targets.is_cpu() || !targets.is_contiguous()) {
    return at::sum(targets.ge(0)).item<int64_t>();
  }
  // A plain loop: to wake threads for so little takes longer, and a GPU waits for it.
  const int64_t* values = targets.const_data_ptr<int64_t>();
  return std::count_if(values, values + targets.numel(), [](int64_t value) { return value >= 0; });
}

}  // namespace penstock::model
