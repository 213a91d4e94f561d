#include "penstock/model/chain.h"

#include <map>

#include <ATen/ATen.h>

#include "penstock/base/error.h"

namespace penstock::model {

Chain& Chain::add(std::unique_ptr<Layer> layer) {
  layers_.push_back(std::move(layer));
  return *this;
}

Chain& Chain::end_with(std::unique_ptr<Loss> loss) {
  loss_ = std::move(loss);
  return *this;
}

const Loss& Chain::loss() const {
  PENSTOCK_CHECK(loss_ != nullptr, "the chain has no loss: end it with Chain::end_with");
  return *loss_;
}

Part Chain::whole() const {
  Part part;
  for (int64_t i = 0; i < size(); ++i) {
    part.layers.push_back(i);
  }
  return part;
}

std::vector<ParameterSpec> Chain::parameters(const Part& part) const {
  std::vector<ParameterSpec> all;
  std::map<std::string, std::vector<int64_t>> known;
  const auto collect = [&](const std::vector<ParameterSpec>& specs) {
    for (const ParameterSpec& spec : specs) {
      const auto [place, is_new] = known.emplace(spec.name, spec.shape);
      if (is_new) {
        all.push_back(spec);
      }
      PENSTOCK_CHECK(place->second == spec.shape,
                     "two layers name the parameter ",
                     spec.name,
                     " with different shapes");
    }
  };
  for (const int64_t index : part.layers) {
    collect(layer(index).parameters());
  }
  if (part.has_loss) {
    collect(loss().parameters());
  }
  return all;
}

std::vector<TensorShape> Chain::shapes_for(const TensorShape& input,
                                           at::ScalarType compute_type) const {
  std::vector<TensorShape> shapes{input};
  for (const auto& layer : layers_) {
    shapes.push_back(layer->size_for(shapes.back(), compute_type).output);
  }
  return shapes;
}

int64_t Chain::parameter_count() const {
  int64_t count = 0;
  for (const ParameterSpec& spec : parameters()) {
    count += spec.count();
  }
  return count;
}

}  // namespace penstock::model
