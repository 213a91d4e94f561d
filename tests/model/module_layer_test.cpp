#include "penstock/model/module_layer.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
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
  chain.add(make_module_layer("first", first.ptr(), [first](const Tensors& x) {
    return Tensors{at::tanh(first.ptr()->forward(x[0]))};
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
  const double mean =
      run::accumulate_gradients(chain, parameters, {.batch = {{"inputs", x}, {"targets", target}}});
  EXPECT_NEAR(mean, loss.item<double>(), 1e-6);
  ASSERT_EQ(parameters.all().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_LT(test::relative_error(parameters.all()[i].gradient, expected[i]), 1e-6)
        << parameters.all()[i].spec.name;
  }
}

// Where they are sharded, weights are gathered for each use: nothing may hold on to them between a
// forward and its backward, whichever way the backward goes.
TEST(ModuleLayer, LetsWeightsGoBetweenItsCalls) {
  const auto layer = module_layer(
      "both",
      torch::nn::Sequential(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3)));
  const at::Tensor x = at::rand({4, 5}), gradient = at::rand({4, 3});
  Tensors kept;
  for (const ParameterSpec& spec : layer->parameters()) {
    kept.push_back(spec.given.clone());
  }
  const auto gathered = [&] {
    Tensors copies;
    for (const at::Tensor& tensor : kept) {
      copies.push_back(tensor.clone());
    }
    return copies;
  };
  const auto is_held = [](const std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>& storages) {
    return std::any_of(
        storages.begin(), storages.end(), [](const auto& one) { return !one.expired(); });
  };
  const auto run = [&](bool lets_go, bool is_split) {
    Saved saved;
    Tensors gradients, weights = gathered();
    for (const at::Tensor& tensor : kept) {
      gradients.push_back(at::zeros_like(tensor));
    }
    layer->forward(weights, {x}, {}, &saved);
    if (lets_go) {
      std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
      for (const at::Tensor& tensor : weights) {
        storages.push_back(tensor.storage().getWeakStorageImpl());
      }
      weights.clear();
      EXPECT_FALSE(is_held(storages));
      weights = gathered();
    }
    Tensors results;
    if (is_split) {
      WeightWork work;
      results =
          layer->backward_input(weights, gradients, {x}, std::move(saved), {gradient}, {}, work);
      weights = gathered();
      layer->backward_weight(weights, gradients, std::move(work));
    } else {
      results = layer->backward(weights, gradients, {x}, std::move(saved), {gradient}, {});
    }
    results.insert(results.end(), gradients.begin(), gradients.end());
    return results;
  };
  const Tensors expected = run(/*lets_go=*/false, /*is_split=*/false);
  for (const bool is_split : {false, true}) {
    const Tensors found = run(/*lets_go=*/true, is_split);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], expected[i])) << i << (is_split ? ", split" : "");
    }
  }
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

namespace {

Tensors weights_of(const Layer& layer) {
  Tensors weights;
  for (const ParameterSpec& spec : layer.parameters()) {
    weights.push_back(spec.given);
  }
  return weights;
}

at::Tensor dropped(const Layer& layer, const Pass& pass, bool keeps = false) {
  Saved saved;
  return layer.forward(weights_of(layer), {at::ones({8, 64})}, pass, keeps ? &saved : nullptr)[0];
}

// Moves by what it is given, and adds where it is.
struct CounterImpl : torch::nn::Module {
  CounterImpl() : total(register_buffer("total", at::zeros({1}))) {}
  at::Tensor forward(const at::Tensor& x) {
    if (is_training()) {
      total.add_(x.detach().sum());
    }
    return x + total;
  }
  at::Tensor total;
};
TORCH_MODULE(Counter);

float value_of(const at::Tensor& tensor) {
  return tensor.item<float>();
}

}  // namespace

TEST(ModuleLayer, DropoutDrawsByThePassAlone) {
  const auto layer = module_layer("drop", torch::nn::Dropout(0.5));
  EXPECT_TRUE(layer->is_random());
  const Pass pass{.seed = 1, .step = 2, .first_sample = 3, .layer = 4};
  const at::Tensor first = dropped(*layer, pass);
  EXPECT_TRUE(first.eq(0).any().item<bool>());
  EXPECT_TRUE(first.eq(2).any().item<bool>());
  std::vector<Pass> others(4, pass);
  others[0].seed = 2;
  others[1].step = 3;
  others[2].first_sample = 4;
  others[3].layer = 5;
  for (const Pass& other : others) {
    EXPECT_FALSE(at::equal(dropped(*layer, other), first));
  }
  // Whatever else has drawn since, and whether or not it keeps.
  at::manual_seed(99);
  at::rand({17});
  EXPECT_TRUE(at::equal(dropped(*layer, pass), first));
  EXPECT_TRUE(at::equal(dropped(*layer, pass, /*keeps=*/true), first));
  // Another layer like it, as another rank has.
  EXPECT_TRUE(at::equal(dropped(*module_layer("drop", torch::nn::Dropout(0.5)), pass), first));
  // Numbers are not of the sum of what they come from.
  EXPECT_FALSE(
      at::equal(dropped(*layer, {.seed = 1, .step = 3, .first_sample = 2, .layer = 4}), first));
  Pass evaluation = pass;
  evaluation.is_training = false;
  EXPECT_TRUE(at::equal(dropped(*layer, evaluation), at::ones({8, 64})));
}

TEST(ModuleLayer, DropoutGoesBackThroughTheMaskOfItsForward) {
  const auto layer =
      module_layer("odd", torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Dropout(0.5)));
  const Tensors weights = weights_of(*layer);
  const Pass pass{.seed = 7, .layer = 1};
  Saved saved;
  const Tensors input{test::random_tensor({6, 4}, 1)};
  const at::Tensor output = layer->forward(weights, input, pass, &saved)[0];
  Tensors gradients{at::zeros({4, 4}), at::zeros({4})};
  const Tensors back =
      layer->backward(weights, gradients, input, std::move(saved), {at::ones({6, 4})}, pass);
  const at::Tensor mask = output.ne(0).to(at::kFloat) * 2;
  EXPECT_LT(test::relative_error(back[0], at::matmul(mask, weights[0])), 1e-6);
  EXPECT_LT(test::relative_error(gradients[0], at::matmul(mask.t(), input[0])), 1e-6);
  EXPECT_LT(test::relative_error(gradients[1], mask.sum(0)), 1e-6);
}

TEST(ModuleLayer, KnowsWhetherItDraws) {
  struct NoiseImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return is_training() ? x + at::rand_like(x) : x; }
  };
  const auto noise = std::make_shared<NoiseImpl>();
  const auto draws = make_module_layer(
      "noise", noise, [noise](const Tensors& x) { return Tensors{noise->forward(x[0])}; });
  const auto pure = function_layer("twice", [](const Tensors& x) { return Tensors{2 * x[0]}; });
  for (const auto* layer : {&draws, &pure}) {
    (*layer)->size_for({{{2, 3}, at::kFloat}}, at::kFloat);
  }
  EXPECT_TRUE(draws->is_random());
  EXPECT_FALSE(pure->is_random());
  const Pass pass{.seed = 3};
  EXPECT_TRUE(at::equal(dropped(*draws, pass), dropped(*draws, pass)));
}

TEST(ModuleLayer, BuffersAreItsStateUnderItsName) {
  torch::nn::Sequential module(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3));
  const auto layer = module_layer("odd", module);
  std::vector<std::string> names;
  for (const StateSpec& spec : layer->state()) {
    names.push_back(spec.name);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "odd.1.running_mean", "odd.1.running_var", "odd.1.num_batches_tracked"}));
  EXPECT_TRUE(at::equal(layer->state()[1].initial, at::ones({3})));
  EXPECT_EQ(layer->state()[2].initial.scalar_type(), at::kLong);
  EXPECT_EQ(layer->parameters().size(), 4U);
  EXPECT_FALSE(layer->is_random());
}

TEST(ModuleLayer, AForwardChangesTheNextStateAndNeverTheCurrent) {
  const auto layer = module_layer("count", Counter());
  ASSERT_EQ(layer->state().size(), 1U);
  const Tensors current{at::full({1}, 10.0F)}, input{at::ones({4, 1})};
  Tensors next{current[0].clone()};
  const LayerState changes{current, next}, second{current, next, /*micro_batches_before=*/1};
  const LayerState leaves_no_trace{current, {}};
  const auto forward = [&](const LayerState* state, bool is_training, Saved* saved = nullptr) {
    const Pass pass{.is_training = is_training, .state = state};
    return value_of(layer->forward({}, input, pass, saved)[0][0][0]);
  };
  Saved saved;
  EXPECT_EQ(forward(&changes, true, &saved), 15);
  EXPECT_EQ(forward(&second, true), 15) << "each micro-batch begins where the step does";
  EXPECT_EQ(value_of(next[0]), 14) << "their mean";
  // A recomputed one, and an evaluation, leave no trace.
  EXPECT_EQ(forward(&leaves_no_trace, true), 15);
  EXPECT_EQ(forward(&leaves_no_trace, false), 11);
  EXPECT_EQ(forward(nullptr, false), 1) << "as the module was at first";
  EXPECT_EQ(value_of(current[0]), 10);
  EXPECT_EQ(value_of(next[0]), 14);
}

TEST(ModuleLayer, BatchNormTrainsLikeTheModuleAlone) {
  torch::nn::Linear first(5, 7);
  torch::nn::BatchNorm1d norm(7), alone(7);
  const at::Tensor weight = first->weight.detach().clone(), bias = first->bias.detach().clone();
  const at::Tensor x = test::random_tensor({8, 5}, 1), target = test::random_tensor({8, 7}, 2);
  for (const int64_t half : {0, 4}) {
    alone(at::linear(x.narrow(0, half, 4), weight, bias));
  }

  Chain chain;
  chain.add(module_layer("first", first));
  chain.add(module_layer("norm", norm));
  chain.end_with(function_loss("squared", squared_error()));
  Parameters parameters(chain, at::kFloat, 0);
  ASSERT_TRUE(parameters.has_state());
  const auto state = [&](size_t i) { return parameters.states()[1].current[i]; };
  ASSERT_EQ(parameters.states()[1].names[0], "norm.running_mean");
  run::accumulate_gradients(
      chain, parameters, {.batch = {{"inputs", x}, {"targets", target}}, .micro_batches = 2});
  parameters.commit_state();
  EXPECT_LT(test::relative_error(state(0), alone->running_mean), 1e-6);
  EXPECT_LT(test::relative_error(state(1), alone->running_var), 1e-6);
  EXPECT_EQ(state(2).item<int64_t>(), 2);
  // An evaluation takes the statistics that there are.
  alone->eval();
  EXPECT_LT(test::relative_error(run::predict(chain, parameters, {{"inputs", x}}),
                                 alone(at::linear(x, weight, bias)).detach()),
            1e-6);
  EXPECT_EQ(state(2).item<int64_t>(), 2);
}

TEST(ModuleLayer, FreezesAParameterThatRequiresNoGradient) {
  torch::nn::Linear first(5, 7), second(7, 3);
  const at::Tensor x = test::random_tensor({4, 5}, 1), target = test::random_tensor({4, 3}, 2);
  (squared_error()(second(at::tanh(first(x))), target) / 12).backward();
  const std::vector<at::Tensor> expected{
      first->weight.grad(), second->weight.grad(), second->bias.grad()};
  first->bias.set_requires_grad(false);
  const Chain chain = make_two_layers(first, second);
  Parameters parameters(chain, at::kFloat, 0);
  run::accumulate_gradients(chain, parameters, {.batch = {{"inputs", x}, {"targets", target}}});
  ASSERT_EQ(parameters.learning().size(), 3U);
  ASSERT_EQ(parameters.all().size(), 4U);
  EXPECT_EQ(parameters.all().back().spec.name, "first.bias");
  EXPECT_FALSE(parameters.all().back().gradient.defined());
  EXPECT_EQ(parameters.flat_gradients().numel(), parameters.all().back().offset);
  EXPECT_EQ(parameters.segments().size(), 3U);
  EXPECT_EQ(parameters.held_segments().size(), 4U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LT(test::relative_error(parameters.all()[i].gradient, expected[i]), 1e-6);
  }
}

// Weights are handed in at each call: the module holds no copy of its own.
TEST(ModuleLayer, SeesChangedWeights) {
  torch::nn::Linear first(5, 7), second(7, 3);
  const Chain chain = make_two_layers(first, second);
  Parameters parameters(chain, at::kFloat, 0);
  const at::Tensor x = test::random_tensor({4, 5}, 1);
  const at::Tensor before = run::predict(chain, parameters, {{"inputs", x}}).clone();
  parameters.flat_weights().mul_(2);
  const at::Tensor after = run::predict(chain, parameters, {{"inputs", x}});
  EXPECT_FALSE(at::allclose(before, after));
}

}  // namespace penstock::model
