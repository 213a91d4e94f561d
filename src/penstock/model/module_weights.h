// The parameters of a torch::nn module as the weights of its layer: windows onto what is handed in.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Storage.h>
#include <torch/nn/module.h>

#include "penstock/model/layer.h"

namespace penstock::model {

// A graph of autograd that outlives a call holds the windows, not the weights, so what was gathered for
// one use can go after it; the backward opens them again onto the same numbers, wherever those lie by
// then.
class ModuleWeights {
 public:
  // ConfigError where a type cannot be trained. Of no module: none.
  ModuleWeights(const std::string& layer, const torch::nn::Module* module);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const Tensors& parameters() const { return parameters_; }  // the module's
  void forget_initial();
  void freeze();

  // Whether it shares a window's memory: then it ends with the window.
  bool is_window(const at::Tensor& tensor) const;

  // While a call runs: the parameters are what was handed in. Outside of it they are empty.
  class Scope {
   public:
    Scope(const ModuleWeights& weights, Weights handed_in);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // A forward must leave the weights as they are; only an update moves them. ConfigError.
    void require_unchanged() const;

   private:
    const ModuleWeights& weights_;
    std::vector<uint32_t> versions_;
  };

 private:
  void open(size_t window, const at::Tensor& weight) const;
  void close(size_t window) const;

  Tensors parameters_;
  mutable std::vector<c10::Storage> windows_;
  mutable Tensors views_;  // of the windows, as the parameters see them
  std::vector<ParameterSpec> specs_;
};

}  // namespace penstock::model
