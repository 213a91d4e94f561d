// Any LibTorch module as a layer: autograd does its backward.
//
//   chain.add(module_layer("hidden", torch::nn::Linear(64, 64)));
//   chain.end_with(function_loss("loss", [](const at::Tensor& out, const at::Tensor& target) {
//     return at::cross_entropy_loss(out, target, {}, at::Reduction::Sum); }));
//
// The module must be a pure function of its input and parameters: no state of its own that a
// forward changes, no random numbers of its own (recomputation would draw others).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <torch/nn/module.h>

#include "penstock/model/layer.h"

namespace penstock::model {

using ModuleForward = std::function<at::Tensor(const at::Tensor&)>;

// The general form: `forward` runs `module`. Parameters are named "<name>.<name in the module>".
std::unique_ptr<Layer> make_module_layer(std::string name,
                                         std::shared_ptr<torch::nn::Module> module,
                                         ModuleForward forward);

// For module holders (torch::nn::Linear and the like) with a forward of one tensor.
template <typename Holder>
std::unique_ptr<Layer> module_layer(std::string name, Holder module) {
  return make_module_layer(std::move(name), module.ptr(), [module](const at::Tensor& input) {
    return module.ptr()->forward(input);
  });
}

// The loss as a function of (output, targets) that returns a sum over targets, and of how many
// targets count (by default all).
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)>;
using TargetCount = std::function<int64_t(const at::Tensor& targets)>;
std::unique_ptr<Loss> function_loss(std::string name,
                                    LossFunction function,
                                    TargetCount count = nullptr);

}  // namespace penstock::model
