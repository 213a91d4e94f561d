// Random numbers of torch::nn modules, which draw from LibTorch's one generator for the CPU.
#pragma once

#include <functional>
#include <mutex>

#include <torch/nn/module.h>

#include "penstock/model/layer.h"

namespace penstock::model {

// Whether one of its parts draws, by its name.
bool has_dropout(const torch::nn::Module& module);

// Whether the call draws from the generator.
bool draws_random_numbers(const std::function<void()>& call);

// While it lives the generator is seeded and belongs to this thread: ranks that are threads take turns.
// Everything that draws from it stands in such a scope, making a module with its first weights too; a
// thread may open one inside another.
class RandomScope {
 public:
  explicit RandomScope(uint64_t seed);
  explicit RandomScope(const Pass& pass);  // what it draws belongs to the pass

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

}  // namespace penstock::model
