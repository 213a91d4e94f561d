#include "penstock/model/layer.h"

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

}  // namespace penstock::model
