// A torch::nn module and its parts: the claim that they are one layer's, and their modes. Parameters:
// module_weights.h; buffers: module_buffers.h.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "penstock/model/layer.h"

namespace penstock::model {

// A tensor of the module by its name there. One that the module registers twice has its first name.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};
std::vector<NamedTensor> each_once(const torch::OrderedDict<std::string, at::Tensor>& all);

// For as long as it lives the module and its parts are the layer's: ranks that are threads would run
// them at the same time, and each layer gives its module weights of its own. ConfigError where a part
// is another layer's, too.
class ModuleClaim {
 public:
  ModuleClaim(const std::string& layer, const torch::nn::Module* module);
  ~ModuleClaim();
  ModuleClaim(const ModuleClaim&) = delete;
  ModuleClaim& operator=(const ModuleClaim&) = delete;

 private:
  std::vector<const torch::nn::Module*> parts_;
};

// Training or evaluation of a module and its parts, by its own train(). A part that was in evaluation mode
// when the layer was made stays there.
class ModuleModes {
 public:
  explicit ModuleModes(torch::nn::Module* module);  // nothing: a function
  void set(bool is_training) const;

 private:
  torch::nn::Module* const module_;
  const bool can_train_;
  std::vector<std::shared_ptr<torch::nn::Module>> still_;  // in evaluation mode for good
};

}  // namespace penstock::model
