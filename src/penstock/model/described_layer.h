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
  DescribedLayer(std::string name, std::vector<ParameterSpec> specs, std::vector<SaveMode> modes)
      : name_(std::move(name)), specs_(std::move(specs)), modes_(std::move(modes)) {}

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }
  const std::vector<SaveMode>& save_modes() const override { return modes_; }

 private:
  std::string name_;
  std::vector<ParameterSpec> specs_;
  std::vector<SaveMode> modes_;
};

}  // namespace penstock::model
