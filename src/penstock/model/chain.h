// The model as a sequence of layers and the loss at its end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "penstock/model/layer.h"

namespace penstock::model {

// Some layers of a chain: those that a rank has.
struct Part {
  std::vector<int64_t> layers;  // ascending
  bool has_loss = true;
};

class Chain {
 public:
  Chain& add(std::unique_ptr<Layer> layer);
  Chain& end_with(std::unique_ptr<Loss> loss);

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }
  const Layer& layer(int64_t index) const { return *layers_[static_cast<size_t>(index)]; }
  const Loss& loss() const;

  // Every parameter once, in the order of the chain. Shared ones appear where they come first.
  // Throws InternalError when two layers disagree about a shared one.
  std::vector<ParameterSpec> parameters() const { return parameters(whole()); }
  std::vector<ParameterSpec> parameters(const Part& part) const;
  Part whole() const;
  int64_t parameter_count() const;

  // What enters each layer, and the loss, for this input.
  std::vector<TensorShape> shapes_for(const TensorShape& input, at::ScalarType compute_type) const;

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<Loss> loss_;
};

}  // namespace penstock::model
