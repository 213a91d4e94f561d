// The weights of one layer after the other, for a forward alone: gathered from the replicas where
// they are sharded.
#pragma once

#include <cstdint>
#include <map>

#include "penstock/model/layer.h"
#include "penstock/run/replicas.h"

namespace penstock::run {

class LayerWeights {
 public:
  // Where weights are sharded, all replicas ask for the same layers in the same order.
  LayerWeights(const model::Parameters& parameters, Replicas* replicas);

  model::Weights of(int64_t layer);  // until the next call

 private:
  const model::Parameters& parameters_;
  Replicas* replicas_;
  std::map<int64_t, model::Tensors> units_;  // of the layer
  model::Tensors weights_;
};

}  // namespace penstock::run
