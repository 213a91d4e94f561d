// Any LibTorch module as a layer: autograd does its backward.
//
//   chain.add(module_layer("hidden", torch::nn::Linear(64, 64)));
//   chain.end_with(function_loss("loss", [](const at::Tensor& out, const at::Tensor& target) {
//     return at::cross_entropy_loss(out, target, {}, at::Reduction::Sum); }));
//
// A module may have several inputs and outputs, buffers (batch norm) and random numbers (dropout).
// What it draws depends on (seed, step, first sample of the micro-batch, layer) alone, so that a
// recomputed forward draws the same. Its buffers are the layer's state: only the first forward
// changes them. docs/own_models.md has more. Modules run on the CPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>

#include "penstock/model/layer.h"

namespace penstock::model {

using ModuleForward = std::function<Tensors(const Tensors&)>;

// The general form: `forward` runs `module`. Parameters and buffers are named "<name>.<name in the
// module>".
std::unique_ptr<Layer> make_module_layer(std::string name,
                                         std::shared_ptr<torch::nn::Module> module,
                                         ModuleForward forward);

// A function of tensors without parameters: an activation, a sum.
std::unique_ptr<Layer> function_layer(std::string name, ModuleForward forward);

namespace detail {

inline Tensors as_tensors(at::Tensor tensor) {
  return {std::move(tensor)};
}
inline Tensors as_tensors(Tensors tensors) {
  return tensors;
}
// Also of tuples: an LSTM returns its output and a pair of states.
template <typename... Ts>
Tensors as_tensors(std::tuple<Ts...> tensors) {
  Tensors all;
  const auto append = [&](auto each) {
    for (at::Tensor& tensor : as_tensors(std::move(each))) {
      all.push_back(std::move(tensor));
    }
  };
  std::apply([&](auto&&... each) { (append(each), ...); }, std::move(tensors));
  return all;
}

template <typename Module, size_t... I>
bool call_if(Module& module, const Tensors& inputs, Tensors& outputs, std::index_sequence<I...>) {
  if constexpr (requires { as_tensors(module.forward(inputs[I]...)); }) {
    if (inputs.size() == sizeof...(I)) {
      outputs = as_tensors(module.forward(inputs[I]...));
      return true;
    }
  }
  return false;
}

[[noreturn]] void refuse_inputs(size_t count);

// module.forward of as many tensors as there are, up to four, or of all as one vector.
template <typename Module>
Tensors call_forward(Module& module, const Tensors& inputs) {
  Tensors outputs;
  if (call_if(module, inputs, outputs, std::make_index_sequence<1>()) ||
      call_if(module, inputs, outputs, std::make_index_sequence<2>()) ||
      call_if(module, inputs, outputs, std::make_index_sequence<3>()) ||
      call_if(module, inputs, outputs, std::make_index_sequence<4>())) {
    return outputs;
  }
  if constexpr (requires { as_tensors(module.forward(inputs)); }) {
    return as_tensors(module.forward(inputs));
  }
  refuse_inputs(inputs.size());
}

}  // namespace detail

// For module holders (torch::nn::Linear and the like). forward may take several tensors, and return a
// tensor, a tuple or a vector of them.
template <typename Holder>
std::unique_ptr<Layer> module_layer(std::string name, Holder module) {
  return make_module_layer(std::move(name), module.ptr(), [module](const Tensors& inputs) {
    return detail::call_forward(*module.ptr(), inputs);
  });
}

// The loss as a function of (output, targets) that returns a sum over targets, and of how many
// targets count (by default all).
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)>;
using TargetCount = std::function<int64_t(const at::Tensor& targets)>;
std::unique_ptr<Loss> function_loss(std::string name,
                                    LossFunction function,
                                    TargetCount count = nullptr);
// The same where several tensors reach the loss, or several fields of the batch are targets.
using LossOfMany = std::function<at::Tensor(const Tensors& inputs, const Tensors& targets)>;
using CountOfMany = std::function<int64_t(const Tensors& targets)>;
std::unique_ptr<Loss> function_loss_of_many(std::string name,
                                            LossOfMany function,
                                            CountOfMany count = nullptr);

}  // namespace penstock::model
