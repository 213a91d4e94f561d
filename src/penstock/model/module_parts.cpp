#include "penstock/model/module_parts.h"

#include <algorithm>
#include <mutex>
#include <set>

#include <ATen/ATen.h>

#include "penstock/base/error.h"

namespace penstock::model {

std::vector<NamedTensor> each_once(const torch::OrderedDict<std::string, at::Tensor>& all) {
  std::vector<NamedTensor> named;
  std::set<const c10::TensorImpl*> known;
  for (const auto& entry : all) {
    if (entry.value().defined() && known.insert(entry.value().unsafeGetTensorImpl()).second) {
      named.push_back({entry.key(), entry.value()});
    }
  }
  return named;
}

namespace {

class PartsInUse {
 public:
  // All of them, or none where one is in use.
  bool add(const std::vector<const torch::nn::Module*>& parts) {
    const std::lock_guard lock(mutex_);
    if (std::any_of(
            parts.begin(), parts.end(), [&](const auto* part) { return parts_.count(part) > 0; })) {
      return false;
    }
    parts_.insert(parts.begin(), parts.end());
    return true;
  }
  void remove(const std::vector<const torch::nn::Module*>& parts) {
    const std::lock_guard lock(mutex_);
    for (const torch::nn::Module* part : parts) {
      parts_.erase(part);
    }
  }

 private:
  std::mutex mutex_;
  std::set<const torch::nn::Module*> parts_;
};

PartsInUse& parts_in_use() {
  static PartsInUse parts;
  return parts;
}

}  // namespace

ModuleClaim::ModuleClaim(const std::string& layer, const torch::nn::Module* module) {
  if (module == nullptr) {
    return;
  }
  constexpr const char* advice =
      "; make modules inside the function that makes the chain, which each rank calls";
  for (const at::Tensor& parameter : module->parameters()) {
    if (parameter.numel() == 0) {
      throw ConfigError(
          cat("layer ", layer, ": an earlier chain has its module's weights", advice));
    }
  }
  std::set<const torch::nn::Module*> parts{module};
  for (const auto& part : module->modules(/*include_self=*/false)) {
    parts.insert(part.get());
  }
  parts_.assign(parts.begin(), parts.end());
  if (!parts_in_use().add(parts_)) {
    throw ConfigError(
        cat("layer ", layer, ": its module, or a part of it, is another layer's, too", advice));
  }
}

ModuleClaim::~ModuleClaim() {
  parts_in_use().remove(parts_);
}

ModuleModes::ModuleModes(torch::nn::Module* module)
    : module_(module), can_train_(module != nullptr && module->is_training()) {
  if (module == nullptr) {
    return;
  }
  for (const auto& part : module->modules(/*include_self=*/false)) {
    if (!part->is_training()) {
      still_.push_back(part);
    }
  }
}

void ModuleModes::set(bool is_training) const {
  if (module_ == nullptr) {
    return;
  }
  module_->train(is_training && can_train_);
  for (const auto& part : still_) {
    part->train(false);
  }
}

}  // namespace penstock::model
