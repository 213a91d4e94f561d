// A layer with a name, parameters and save modes that are fixed when it is made. For hand-written
// layers, which add their arithmetic.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "penstock/model/layer.h"

namespace penstock::model {

class DescribedLayer : public Layer {
 public:
  DescribedLayer(std::string name, std::vector<ParameterSpec> specs, std::vector<Way> ways)
      : name_(std::move(name)), specs_(std::move(specs)), ways_(std::move(ways)) {}

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }
  const std::vector<Way>& ways() const override { return ways_; }

 private:
  std::string name_;
  std::vector<ParameterSpec> specs_;
  std::vector<Way> ways_;
};

}  // namespace penstock::model
