#include "penstock/model/module_weights.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "penstock/base/error.h"
#include "penstock/model/module_parts.h"

namespace penstock::model {

ModuleWeights::ModuleWeights(const std::string& layer, const torch::nn::Module* module) {
  if (module == nullptr) {
    return;
  }
  for (const auto& [name, tensor] : each_once(module->named_parameters())) {
    if (!tensor.is_floating_point()) {
      throw ConfigError(cat("layer ",
                            layer,
                            ": its parameter ",
                            name,
                            " is ",
                            c10::toString(tensor.scalar_type()),
                            "; parameters are floating-point numbers"));
    }
    const at::Tensor value = tensor.detach();
    parameters_.push_back(tensor);
    specs_.push_back({.name = cat(layer, ".", name),
                      .shape = value.sizes().vec(),
                      .init = ParameterSpec::Init::Given,
                      .has_weight_decay = value.dim() > 1,
                      .given = value,  // a call gives the module others
                      .is_frozen = !tensor.requires_grad()});
  }
  windows_.resize(parameters_.size());
  views_.resize(parameters_.size());
}

void ModuleWeights::forget_initial() {
  for (size_t i = 0; i < specs_.size(); ++i) {
    specs_[i].given = at::Tensor();
    close(i);
  }
}

void ModuleWeights::freeze() {
  for (size_t i = 0; i < specs_.size(); ++i) {
    parameters_[i].set_requires_grad(false);
    specs_[i].is_frozen = true;
  }
}

bool ModuleWeights::is_window(const at::Tensor& tensor) const {
  const auto* const storage = tensor.storage().unsafeGetStorageImpl();
  return std::any_of(windows_.begin(), windows_.end(), [&](const c10::Storage& window) {
    return window.unsafeGetStorageImpl() == storage;
  });
}

void ModuleWeights::open(size_t window, const at::Tensor& weight) const {
  at::Tensor& view = views_[window];
  c10::Storage& storage = windows_[window];
  if (!view.defined() || view.scalar_type() != weight.scalar_type()) {
    storage = c10::Storage(c10::Storage::use_byte_size_t(),
                           weight.nbytes(),
                           c10::DataPtr(nullptr, c10::kCPU),
                           /*allocator=*/nullptr,
                           /*resizable=*/false);
    view = at::empty({0}, weight.options()).set_(storage, 0, weight.sizes(), weight.strides());
  }
  auto* const held = new c10::Storage(weight.storage());
  storage.set_data_ptr_noswap(c10::DataPtr(
      weight.data_ptr(),
      held,
      [](void* context) { delete static_cast<c10::Storage*>(context); },
      c10::kCPU));
  // set_data leaves the parameter's identity as a leaf of graphs alone.
  at::Tensor(parameters_[window]).set_data(view);
}

// Empty, so that a function that has captured another layer's parameter gets an error, not a window onto
// nothing.
void ModuleWeights::close(size_t window) const {
  const at::Tensor& parameter = parameters_[window];
  at::Tensor(parameter).set_data(at::empty({0}, parameter.options()));
  if (windows_[window]) {
    windows_[window].set_data_ptr_noswap(c10::DataPtr(nullptr, c10::kCPU));
  }
}

ModuleWeights::Scope::Scope(const ModuleWeights& weights, Weights handed_in) : weights_(weights) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < weights_.parameters_.size(); ++i) {
    PENSTOCK_CHECK(handed_in[i].defined() && handed_in[i].is_contiguous(), "a weight is missing");
    weights_.open(i, handed_in[i]);
    versions_.push_back(weights_.parameters_[i]._version());
  }
}

ModuleWeights::Scope::~Scope() {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < weights_.parameters_.size(); ++i) {
    weights_.close(i);
  }
}

void ModuleWeights::Scope::require_unchanged() const {
  for (size_t i = 0; i < versions_.size(); ++i) {
    if (weights_.parameters_[i]._version() != versions_[i]) {
      throw ConfigError(cat("it changes its parameter ",
                            weights_.specs_[i].name,
                            " in place, which only the optimizer may: replicas and recomputed "
                            "forwards would not agree about it; work on a copy (an Embedding with "
                            "max_norm changes its table)"));
    }
  }
}

}  // namespace penstock::model
