#include "penstock/model/module_layer.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "penstock/base/error.h"
#include "penstock/model/parameters.h"
#include "penstock/model/units.h"
#include "penstock/run/plain_step.h"

#include "support/error_text.h"
#include "support/random_tensor.h"

namespace penstock::model {

namespace {

LossFunction squared_error() {
  return
      [](const at::Tensor& out, const at::Tensor& target) { return (out - target).square().sum(); };
}

Chain make_two_layers(torch::nn::Linear first, torch::nn::Linear second) {
  Chain chain;
  chain.add(make_module_layer("first", first.ptr(), [first](const at::Tensor& x) {
    return at::tanh(first.ptr()->forward(x));
  }));
  chain.add(module_layer("second", second));
  chain.end_with(function_loss("squared", squared_error()));
  return chain;
}

}  // namespace

TEST(ModuleLayer, GradientsEqualThoseOfAutogradOverTheWholeModel) {
  torch::nn::Linear first(5, 7), second(7, 3);
  const at::Tensor x = test::random_tensor({4, 5}, 1), target = test::random_tensor({4, 3}, 2);
  const at::Tensor loss = squared_error()(second(at::tanh(first(x))), target) / 12;
  loss.backward();
  const std::vector<at::Tensor> expected{
      first->weight.grad(), first->bias.grad(), second->weight.grad(), second->bias.grad()};

  const Chain chain = make_two_layers(first, second);
  Parameters parameters(chain, at::kFloat, 0);
  const double mean = run::accumulate_gradients(chain, parameters, {x, target});
  EXPECT_NEAR(mean, loss.item<double>(), 1e-6);
  ASSERT_EQ(parameters.all().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_LT(test::relative_error(parameters.all()[i].gradient, expected[i]), 1e-6)
        << parameters.all()[i].spec.name;
  }
}

TEST(ModuleLayer, IsRefusedWhereWeightsAreGathered) {
  const Chain chain = make_two_layers(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
  const auto make = [&](program::Shard shard) {
    const Parameters parameters(
        chain,
        chain.whole(),
        at::kFloat,
        0,
        device::open_cpu(),
        {shard, /*replicas=*/2, /*replica=*/0, make_units(chain, {0, 2}, 0)});
  };
  make(program::Shard::Gradients);
  EXPECT_EQ(test::error_text<ConfigError>([&] { make(program::Shard::Parameters); }),
            "layer first holds on to its weights, as LibTorch modules do, so that they cannot be "
            "gathered for each use; plan.shard = \"gradients\" and less take it");
}

TEST(ModuleLayer, NamesParametersByLayerAndStartsFromTheModule) {
  torch::nn::Linear first(5, 7), second(7, 3);
  const at::Tensor weight = first->weight.detach().clone();
  const Chain chain = make_two_layers(first, second);
  const Parameters parameters(chain, at::kFloat, 0);
  ASSERT_NE(parameters.find("first.weight"), nullptr);
  EXPECT_TRUE(at::equal(parameters.find("first.weight")->weight, weight));
  EXPECT_TRUE(parameters.find("first.weight")->spec.has_weight_decay);
  EXPECT_FALSE(parameters.find("second.bias")->spec.has_weight_decay);
}

TEST(ModuleLayer, RefusesModulesThatAreNoPureFunction) {
  const auto refusal = [](std::shared_ptr<torch::nn::Module> module) -> std::string {
    try {
      make_module_layer("odd", std::move(module), nullptr);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  torch::nn::Sequential with_dropout(torch::nn::Linear(2, 2), torch::nn::Dropout(0.5));
  EXPECT_NE(refusal(with_dropout.ptr()).find("Dropout"), std::string::npos);
  EXPECT_NE(refusal(torch::nn::BatchNorm1d(3).ptr()).find("running_mean"), std::string::npos);
}

// Weights are handed in at each call: the module holds no copy of its own.
TEST(ModuleLayer, SeesChangedWeights) {
  torch::nn::Linear first(5, 7), second(7, 3);
  const Chain chain = make_two_layers(first, second);
  Parameters parameters(chain, at::kFloat, 0);
  const at::Tensor x = test::random_tensor({4, 5}, 1);
  const at::Tensor before = run::predict(chain, parameters, x).clone();
  parameters.flat_weights().mul_(2);
  const at::Tensor after = run::predict(chain, parameters, x);
  EXPECT_FALSE(at::allclose(before, after));
}

}  // namespace penstock::model
