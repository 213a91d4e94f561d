// What the tests of a user's own chains share: chains, datasets, recipes, and what comes of training.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "penstock/config/recipe.h"
#include "penstock/data/dataset.h"
#include "penstock/model/chain.h"
#include "penstock/train/trainer.h"

namespace penstock::train {

namespace fs = std::filesystem;
using model::Chain;
using model::Tensors;
using MakeChain = std::function<Chain()>;

inline constexpr int64_t kWidth = 24, kLength = 10;

// 64 of them: features [kLength, kWidth], a length, a label.
data::DatasetPtr sequences();
std::unique_ptr<model::Loss> label_loss();

struct MaskedImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    return x + at::tanh(linear(x)) * mask;
  }
};
TORCH_MODULE(Masked);

// A mask that the first layer makes, read by all others.
Chain masked_chain();

struct CrossImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
  at::Tensor forward(const at::Tensor& x, const at::Tensor& encoded) {
    return at::tanh(linear(x) + encoded.mean(1, true) * x);
  }
};
TORCH_MODULE(Cross);

// An encoder's output, read by three later layers with others in between, and by the gradient of which
// the encoder learns.
Chain encoder_chain();

// What is frozen: an encoder, whose output two later layers read; a bias of a layer that learns; a layer
// through which gradients pass. One layer learns at half the rate.
struct FrozenModules {
  torch::nn::Linear encode_0{kWidth, kWidth}, encode_1{kWidth, kWidth}, start{kWidth, kWidth};
  Cross slow;
  torch::nn::Linear between{kWidth, kWidth}, after{kWidth, kWidth};
  Cross cross;

  FrozenModules() { start->bias.set_requires_grad(false); }
};
Chain frozen_chain();

fs::path fresh_folder(const std::string& name);
config::Recipe recipe_for(const std::string& name, int64_t steps = 3);
// Whose every step a plain loop can do with the same bits.
config::Recipe sgd_recipe(const std::string& name, int64_t steps);

// The bytes of the weights, and of the layers' state where there is any.
struct Result {
  Summary summary;
  std::string weights, state;
};
Result train(const MakeChain& make,
             const data::DatasetPtr& dataset,
             const config::Recipe& recipe,
             const fs::path& resume = {});

// The least limit under which the chain trains: its plan names it where a limit is too small.
int64_t least_bytes(const MakeChain& make, const data::DatasetPtr& dataset, config::Recipe recipe);

// Where a backward is split, graphs of neighbours hold on to the tensor between them until both weight
// gradients are there: it is counted in each, and so predicted peaks are a little high.
void expect_peaks(const std::vector<int64_t>& measured,
                  const std::vector<int64_t>& predicted,
                  const std::string& schedule,
                  const std::string& what);

// Undefined where the file has none of that name.
at::Tensor tensor_in(const fs::path& file, const std::string& name, const at::Tensor& like);

// Of the Error that it throws; empty where it throws none.
std::string message_of(const std::function<void()>& work);

}  // namespace penstock::train
