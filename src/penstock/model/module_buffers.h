// The buffers of a torch::nn module as the state of its layer: what a forward sees of them, what it leaves,
// and what its backward finds.
#pragma once

#include <string>
#include <vector>

#include <c10/core/TensorImpl.h>
#include <torch/nn/module.h>

#include "penstock/model/layer.h"

namespace penstock::model {

// A buffer as a forward saw it, which autograd has saved. Undefined: it has not.
struct SavedBuffer {
  at::Tensor tensor;
  c10::VariableVersion version;
};

// Every forward sees copies, which autograd may hold on to. What it returns must not depend on whether it
// runs for the first time or again, so it sees the buffers as the step began; what the micro-batches leave
// is put together as what replicas leave (StateSpec::Merge). The running statistics of LibTorch's norms
// are the exception: in training nothing depends on them, so each micro-batch goes on from the one before,
// as in a loop over micro-batches.
class ModuleBuffers {
 public:
  // ConfigError where a type cannot be saved. Of no module: none.
  ModuleBuffers(const std::string& layer, const torch::nn::Module* module);

  const std::vector<StateSpec>& specs() const { return specs_; }
  void forget_initial();

  bool has(const at::Tensor& tensor) const;  // or a view of one

  // While a forward runs.
  class Forward {
   public:
    Forward(const ModuleBuffers& buffers, const LayerState* state);
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

    void commit() const;  // of one that leaves a trace
    std::vector<SavedBuffer> saved_by_autograd() const;

   private:
    const ModuleBuffers& buffers_;
    const LayerState* const state_;
    std::vector<size_t> users_;  // of each buffer, before the forward
  };

  // While a backward runs.
  class Backward {
   public:
    Backward(const ModuleBuffers& buffers, const std::vector<SavedBuffer>& saved);
    ~Backward();
    Backward(const Backward&) = delete;
    Backward& operator=(const Backward&) = delete;

   private:
    const ModuleBuffers& buffers_;
  };

 private:
  void put(size_t buffer, const at::Tensor& value, const c10::VariableVersion& version) const;
  void clear() const;

  Tensors tensors_;             // the module's
  std::vector<bool> of_norms_;  // running statistics
  std::vector<StateSpec> specs_;
};

}  // namespace penstock::model
