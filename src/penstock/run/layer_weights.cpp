#include "penstock/run/layer_weights.h"

#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/base/text.h"
#include "penstock/model/parameters.h"

namespace penstock::run {

LayerWeights::LayerWeights(const model::Parameters& parameters, Replicas* replicas)
    : parameters_(parameters), replicas_(replicas) {}

model::Weights LayerWeights::of(int64_t layer) {
  if (parameters_.shard() != program::Shard::Parameters) {
    return parameters_.weights_of(layer);
  }
  weights_.clear();
  units_.clear();
  std::vector<WorkPtr> works;
  for (const int64_t unit : parameters_.units_of(layer)) {
    const model::Tensors& weights = units_[unit] = parameters_.unit_weights(unit);
    works.push_back(
        replicas_->gather(parameters_, unit, weights, cat("the weights of layer ", layer)));
  }
  for (const WorkPtr& work : works) {
    replicas_->wait(*work);
  }
  weights_ = parameters_.weights_in_units(layer, [&](int64_t unit) { return &units_.at(unit); });
  return weights_;
}

}  // namespace penstock::run
