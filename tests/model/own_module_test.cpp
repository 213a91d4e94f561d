// What modules and functions of a user's own may do, and what they are refused.
#include <stdexcept>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "penstock/base/error.h"
#include "penstock/model/chain.h"
#include "penstock/model/module_layer.h"
#include "penstock/model/module_random.h"

#include "support/error_text.h"
#include "support/random_tensor.h"

namespace penstock::model {
namespace {

at::Tensor input() {
  return test::random_tensor({4, 3}, 1);
}

Tensors first_weights(const Layer& layer) {
  Tensors weights;
  for (const ParameterSpec& spec : layer.parameters()) {
    weights.push_back(spec.given.clone());
  }
  return weights;
}

// Forward, and backward of ones: the output, the input gradient, the gradients of the weights.
struct Ran {
  Tensors output, back, gradients;
};
Ran run(const Layer& layer, const Tensors& given, const Pass& pass = {}, bool is_split = false) {
  Ran result;
  const Tensors weights = first_weights(layer);
  for (const at::Tensor& weight : weights) {
    result.gradients.push_back(at::zeros_like(weight));
  }
  Saved saved;
  result.output = layer.forward(weights, given, pass, &saved);
  Tensors ones;
  for (const at::Tensor& tensor : result.output) {
    ones.push_back(at::ones_like(tensor));
  }
  if (is_split) {
    WeightWork work;
    result.back =
        layer.backward_input(weights, result.gradients, given, std::move(saved), ones, pass, work);
    layer.backward_weight(weights, result.gradients, std::move(work));
  } else {
    result.back = layer.backward(weights, result.gradients, given, std::move(saved), ones, pass);
  }
  return result;
}

std::string refusal_of(const Layer& layer, const Tensors& given = {input()}) {
  return test::error_text<ConfigError>([&] { run(layer, given); });
}

std::unique_ptr<Layer> function_of(std::function<at::Tensor(const at::Tensor&)> function) {
  return function_layer("odd", [function = std::move(function)](const Tensors& in) {
    return Tensors{function(in[0])};
  });
}

LayerSize size_of(const Layer& layer, const at::Tensor& given) {
  return layer.size_for({{given.sizes().vec(), given.scalar_type()}}, at::kFloat);
}

}  // namespace

TEST(OwnModule, AnOutputOfNestedTuplesIsSeveralTensors) {
  const auto layer = module_layer("lstm", torch::nn::LSTM(3, 5));
  const Ran ran = run(*layer, {test::random_tensor({6, 2, 3}, 2)});
  ASSERT_EQ(ran.output.size(), 3U);
  EXPECT_EQ(ran.output[0].sizes(), (std::vector<int64_t>{6, 2, 5}));
  EXPECT_EQ(ran.output[1].sizes(), (std::vector<int64_t>{1, 2, 5}));
  EXPECT_EQ(ran.gradients.size(), 4U);
}

// One that is registered twice has one weight and one gradient, which both uses add to.
TEST(OwnModule, ATensorThatIsRegisteredTwiceIsOne) {
  struct TwiceImpl : torch::nn::Module {
    TwiceImpl() {
      first = register_parameter("first", test::random_tensor({3}, 3));
      again = register_parameter("again", first);
    }
    at::Tensor forward(const at::Tensor& x) { return x * first + again; }
    at::Tensor first, again;
  };
  const auto module = std::make_shared<TwiceImpl>();
  const auto layer = make_module_layer(
      "twice", module, [module](const Tensors& in) { return Tensors{module->forward(in[0])}; });
  ASSERT_EQ(layer->parameters().size(), 1U);
  EXPECT_EQ(layer->parameters()[0].name, "twice.first");
  const Ran ran = run(*layer, {input()});
  EXPECT_TRUE(at::allclose(ran.gradients[0], input().sum(0) + 4));
}

TEST(OwnModule, APartInEvaluationModeStaysThere) {
  torch::nn::Sequential module(torch::nn::Dropout(0.5), torch::nn::Dropout(0.5));
  for (const auto& part : module->children()) {
    part->eval();
  }
  EXPECT_TRUE(at::equal(run(*module_layer("still", module), {input()}).output[0], input()));
  torch::nn::Sequential half(torch::nn::Dropout(0.5), torch::nn::Dropout(0.5));
  half->children()[0]->eval();
  const auto layer = module_layer("half", half);
  EXPECT_FALSE(at::equal(run(*layer, {at::ones({8, 8})}).output[0], at::ones({8, 8})));
  const Pass evaluation{.is_training = false};
  EXPECT_TRUE(at::equal(layer->forward({}, {input()}, evaluation, nullptr)[0], input()));
}

// A frozen batch norm, as users write one.
TEST(OwnModule, ItsOwnTrainHasTheLastWord) {
  struct FrozenNormImpl : torch::nn::Module {
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(3));
    void train(bool on) override {
      Module::train(on);
      norm->eval();
    }
    at::Tensor forward(const at::Tensor& x) { return norm(x); }
  };
  const auto module = std::make_shared<FrozenNormImpl>();
  const auto layer = make_module_layer(
      "frozen", module, [module](const Tensors& in) { return Tensors{module->forward(in[0])}; });
  const Tensors current{at::full({3}, 2.0F), at::ones({3}), at::zeros({}, at::kLong)};
  Tensors next{current[0].clone(), current[1].clone(), current[2].clone()};
  const LayerState state{current, next};
  const Tensors output =
      layer->forward(first_weights(*layer), {input()}, {.state = &state}, nullptr);
  EXPECT_TRUE(at::allclose(output[0], input() - 2, 1e-4, 1e-4));
  EXPECT_TRUE(at::equal(next[0], current[0]));
}

TEST(OwnModule, MayReturnABufferOrItsInput) {
  struct GivesImpl : torch::nn::Module {
    at::Tensor mask = register_buffer("mask", at::ones({4, 3}));
    Tensors forward(const at::Tensor& x) { return {x.view({2, 6}), mask, x}; }
  };
  const auto module = std::make_shared<GivesImpl>();
  const auto layer = make_module_layer(
      "gives", module, [module](const Tensors& in) { return module->forward(in[0]); });
  EXPECT_EQ(size_of(*layer, input()).outputs.at(1).sizes, (std::vector<int64_t>{4, 3}));
  const Tensors current{at::full({4, 3}, 7.0F)};
  const LayerState state{current, {}};
  for (const bool keeps : {false, true}) {
    Saved saved;
    const Tensors output =
        layer->forward({}, {input()}, {.state = &state}, keeps ? &saved : nullptr);
    EXPECT_TRUE(at::equal(output[1], current[0]));
    EXPECT_TRUE(at::equal(output[2], input()));
    // Each is counted as a value of its own, so it has memory of its own.
    EXPECT_FALSE(output[0].is_alias_of(input()));
    EXPECT_FALSE(output[2].is_alias_of(input()));
  }
}

TEST(OwnModule, ItsPartsBelongToOneLayer) {
  torch::nn::Linear shared(3, 3);
  const auto layer = module_layer("one", torch::nn::Sequential(shared, torch::nn::Tanh()));
  const std::string text = test::error_text<ConfigError>(
      [&] { module_layer("two", torch::nn::Sequential(torch::nn::Tanh(), shared)); });
  EXPECT_EQ(text,
            "layer two: its module, or a part of it, is another layer's, too; make modules inside "
            "the function that makes the chain, which each rank calls");
}

TEST(OwnModule, OnlyWhatCanBeTrainedAndSaved) {
  struct OddImpl : torch::nn::Module {
    explicit OddImpl(bool has_buffer) {
      if (has_buffer) {
        register_buffer("waves", at::zeros({2}, at::kComplexFloat));
      } else {
        register_parameter("steps", at::zeros({2}, at::kLong), /*requires_grad=*/false);
      }
    }
  };
  const auto make = [](bool has_buffer) {
    make_module_layer(
        "odd", std::make_shared<OddImpl>(has_buffer), [](const Tensors& in) { return in; });
  };
  EXPECT_EQ(test::error_text<ConfigError>([&] { make(true); }),
            "layer odd: its buffer waves is ComplexFloat, which checkpoints cannot hold; store it "
            "as real numbers, such as view_as_real gives");
  EXPECT_EQ(test::error_text<ConfigError>([&] { make(false); }),
            "layer odd: its parameter steps is Long; parameters are floating-point numbers");
}

TEST(OwnModule, LeavesItsInputAsItIs) {
  const std::string expected =
      "layer odd, forward of Float [4, 3]: it changes what it is given in place, which others "
      "read, too; work on a copy, or without inplace";
  const at::Tensor before = input().clone();
  EXPECT_EQ(refusal_of(*function_of([](const at::Tensor& x) { return at::Tensor(x).relu_(); })),
            expected);
  EXPECT_EQ(refusal_of(*function_of([](const at::Tensor& x) {
              const c10::InferenceMode no_mode(false);
              at::Tensor(x).detach().zero_();
              return x * 2;
            })),
            expected);
  const auto layer = module_layer(
      "odd", torch::nn::Sequential(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true))));
  EXPECT_EQ(refusal_of(*layer, {before.clone()}), expected);
  // In place on what it has made itself is its own business.
  const auto own = module_layer(
      "own",
      torch::nn::Sequential(torch::nn::Linear(3, 3),
                            torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true))));
  EXPECT_EQ(run(*own, {before}).output.size(), 1U);
}

TEST(OwnModule, HandsOnAsManyBytesAsItIsCountedAs) {
  const auto expect_compact = [](const at::Tensor& tensor) {
    EXPECT_TRUE(tensor.is_contiguous());
    EXPECT_EQ(tensor.storage().nbytes(), tensor.nbytes());
  };
  const auto functions = {function_of([](const at::Tensor& x) { return x.t(); }),
                          function_of([](const at::Tensor& x) { return x.narrow(0, 0, 1); }),
                          function_of([](const at::Tensor& x) {
                            return x.sum().expand({100, 100});
                          })};
  for (const auto& layer : functions) {
    const Ran ran = run(*layer, {input()});
    expect_compact(ran.output[0]);
    expect_compact(ran.back[0]);
    expect_compact(layer->forward({}, {input()}, {}, nullptr)[0]);
  }
}

// A table as it is, say: what is handed on must not end with the weights' being there.
TEST(OwnModule, HandsOnNoWindowOntoWeights) {
  struct TableImpl : torch::nn::Module {
    at::Tensor table = register_parameter("table", test::random_tensor({4, 3}, 5));
    at::Tensor forward(const at::Tensor&) { return table; }
  };
  const auto module = std::make_shared<TableImpl>();
  const auto layer = make_module_layer(
      "table", module, [module](const Tensors& in) { return Tensors{module->forward(in[0])}; });
  const at::Tensor value = layer->parameters()[0].given.clone();
  for (const bool keeps : {false, true}) {
    Saved saved;
    Tensors weights = first_weights(*layer);
    const Tensors output = layer->forward(weights, {input()}, {}, keeps ? &saved : nullptr);
    weights[0].zero_();
    weights.clear();
    EXPECT_TRUE(at::equal(output[0], value));
  }
  EXPECT_TRUE(at::equal(run(*layer, {input()}).gradients[0], at::ones({4, 3})));
}

TEST(OwnModule, AParameterThatAFunctionCapturesIsRefused) {
  const at::Tensor captured = at::ones({3}).set_requires_grad(true);
  const std::string expected =
      "layer odd: its function uses a parameter Float [3] that its module does not have, so "
      "nothing would move it; register it in a module, and make the layer by module_layer";
  const auto layer = function_of([captured](const at::Tensor& x) { return x * captured; });
  EXPECT_EQ(test::error_text<ConfigError>([&] { size_of(*layer, input()); }), expected);
  const at::Tensor fixed = at::ones({3});
  size_of(*function_of([fixed](const at::Tensor& x) { return x * fixed; }), input());
}

// A derivative inside of the forward, as in physics.
TEST(OwnModule, MayMakeALeafOfItsOwn) {
  const auto layer = function_of([](const at::Tensor& x) {
    const c10::AutoGradMode with_grad(true);
    const at::Tensor t = at::ones({3}).set_requires_grad(true);
    const at::Tensor slope =
        torch::autograd::grad({t.square().sum()}, {t}, {}, true, /*create_graph=*/true)[0];
    return x * slope;
  });
  size_of(*layer, input());
  EXPECT_TRUE(at::allclose(run(*layer, {input()}).back[0], at::full({4, 3}, 2.0F)));
}

// Its window is closed while other layers run.
TEST(OwnModule, AnotherLayersParameterIsNotThere) {
  torch::nn::Linear owned(3, 3);
  const auto owner = module_layer("owner", owned);
  run(*owner, {input()});
  const std::string text = refusal_of(
      *function_of([owned](const at::Tensor& x) { return at::linear(x, owned->weight); }));
  EXPECT_EQ(text.find("layer odd, forward of Float [4, 3]: "), 0U) << text;
}

TEST(OwnModule, LeavesItsWeightsAsTheyAre) {
  const auto layer =
      module_layer("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 3).max_norm(0.1)));
  EXPECT_EQ(refusal_of(*layer, {at::zeros({2}, at::kLong)}),
            "layer table, forward of Long [2]: it changes its parameter table.weight in place, "
            "which only the optimizer may: replicas and recomputed forwards would not agree about "
            "it; work on a copy (an Embedding with max_norm changes its table)");
}

TEST(OwnModule, AFunctionThatDrawsInEvaluationIsRefused) {
  const auto layer = function_of([](const at::Tensor& x) { return at::dropout(x, 0.5, true); });
  EXPECT_EQ(test::error_text<ConfigError>([&] { size_of(*layer, input()); }),
            "layer odd: a function does not know whether it runs in training, and it draws random "
            "numbers in evaluation, too; make a module of it, such as Dropout, and the layer by "
            "module_layer");
}

TEST(OwnModule, ReturnsTheSameShapesInEvaluation) {
  struct TwoFacedImpl : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return is_training() ? x * 2 : x.sum(0); }
  };
  const auto module = std::make_shared<TwoFacedImpl>();
  const auto layer = make_module_layer(
      "odd", module, [module](const Tensors& in) { return Tensors{module->forward(in[0])}; });
  EXPECT_EQ(test::error_text<ConfigError>([&] { size_of(*layer, input()); }),
            "layer odd: in evaluation it returns Float [3], and in training Float [4, 3]");
}

// The last batch of a validation.
TEST(OwnModule, ANormMayEvaluateOneSample) {
  const auto layer = module_layer("norm", torch::nn::BatchNorm1d(3));
  const Shapes one{{{1, 3}, at::kFloat}};
  EXPECT_EQ(layer->outputs_in_evaluation(one, at::kFloat).at(0).sizes,
            (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(test::error_text<ConfigError>([&] { layer->size_for(one, at::kFloat); }),
            "layer norm, forward of Float [1, 3]: Expected more than 1 value per channel when "
            "training, got input size [1, 3]");
}

// LibTorch folds a matmul into one GEMM, or not, by whether a factor wants a gradient.
TEST(OwnModule, AForwardThatKeepsNothingHasTheBitsOfOneThatKeeps) {
  struct MixImpl : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", test::random_tensor({37, 37}, 7));
    at::Tensor forward(const at::Tensor& x) { return at::matmul(at::softmax(weight, 1), x); }
  };
  const auto module = std::make_shared<MixImpl>();
  const auto layer = make_module_layer(
      "mix", module, [module](const Tensors& in) { return Tensors{module->forward(in[0])}; });
  const at::Tensor x = test::random_tensor({5, 37, 19}, 8);
  const Tensors weights = first_weights(*layer);
  size_of(*layer, x);
  Saved saved;
  EXPECT_TRUE(at::equal(layer->forward(weights, {x}, {}, &saved)[0],
                        layer->forward(weights, {x}, {}, nullptr)[0]));
}

TEST(OwnModule, WhatItReturnsMustBeDense) {
  EXPECT_EQ(refusal_of(*function_of([](const at::Tensor&) { return at::Tensor(); })),
            "layer odd, forward of Float [4, 3]: it returns an undefined tensor; return dense "
            "tensors alone");
  EXPECT_EQ(refusal_of(*function_of([](const at::Tensor& x) { return x.to_sparse(); })),
            "layer odd, forward of Float [4, 3]: it returns a tensor that is sparse or not on the "
            "CPU; return dense tensors alone");
}

TEST(OwnModule, WhatItThrowsNamesTheLayer) {
  EXPECT_EQ(refusal_of(*function_of([](const at::Tensor&) -> at::Tensor {
              throw std::runtime_error("no such table\nand more");
            })),
            "layer odd, forward of Float [4, 3]: no such table");
  EXPECT_EQ(refusal_of(*function_of([](const at::Tensor& x) { return at::matmul(x, x); })),
            "layer odd, forward of Float [4, 3]: mat1 and mat2 shapes cannot be multiplied (4x3 "
            "and 4x3)");
}

// The graph holds a buffer by its tensor, which has other storage after the forward.
TEST(OwnModule, ABufferThatTheBackwardNeedsIsThere) {
  struct ScaledImpl : torch::nn::Module {
    at::Tensor scale = register_buffer("scale", at::full({3}, 2.0));
    at::Tensor weight = register_parameter("weight", test::random_tensor({3}, 6));
    at::Tensor forward(const at::Tensor& x) { return x * scale * weight; }
  };
  const auto module = std::make_shared<ScaledImpl>();
  const auto layer = make_module_layer(
      "scaled", module, [module](const Tensors& in) { return Tensors{module->forward(in[0])}; });
  const Tensors current{at::full({3}, 5.0F)};
  Tensors next{current[0].clone()};
  const LayerState state{current, next};
  for (const bool is_split : {false, true}) {
    const Ran ran = run(*layer, {input()}, {.state = &state}, is_split);
    const at::Tensor weight = layer->parameters()[0].given;
    EXPECT_TRUE(at::allclose(ran.back[0], (5 * weight).expand({4, 3})));
    EXPECT_TRUE(at::allclose(ran.gradients[0], 5 * input().sum(0)));
  }
}

namespace {

// Its output depends on what it changes.
struct RunningMeanImpl : torch::nn::Module {
  at::Tensor total = register_buffer("total", at::zeros({1}));
  at::Tensor calls = register_buffer("calls", at::zeros({}, at::kLong));
  at::Tensor is_new = register_buffer("is_new", at::ones({}, at::kBool));
  at::Tensor forward(const at::Tensor& x) {
    if (is_training()) {
      total.add_(x.detach().mean());
      calls.add_(1);
      is_new.fill_(false);
    }
    return x - total / calls;
  }
};
TORCH_MODULE(RunningMean);

}  // namespace

// What is recomputed finds no state but that of the step's beginning, so all forwards begin there; what
// they leave is put together as what replicas leave.
TEST(OwnModule, EveryForwardSeesTheStateOfTheStepsBeginning) {
  const auto layer = module_layer("mean", RunningMean());
  size_of(*layer, input());
  const Tensors current{
      at::full({1}, 3.0F), at::full({}, 2, at::kLong), at::full({}, true, at::kBool)};
  Tensors next{current[0].clone(), current[1].clone(), current[2].clone()};
  const LayerState leaves_no_trace{current, {}};
  const Tensors halves = {input().narrow(0, 0, 2), input().narrow(0, 2, 2)};
  Tensors first, again;
  for (int64_t i = 0; i < 2; ++i) {
    const LayerState changes{current, next, i};
    first.push_back(
        layer->forward({}, {halves[static_cast<size_t>(i)]}, {.state = &changes}, nullptr)[0]);
  }
  for (const at::Tensor& half : halves) {
    again.push_back(layer->forward({}, {half}, {.state = &leaves_no_trace}, nullptr)[0]);
  }
  EXPECT_TRUE(at::equal(first[0], again[0]));
  EXPECT_TRUE(at::equal(first[1], again[1]));
  EXPECT_TRUE(at::allclose(first[1], halves[1] - (3 + halves[1].mean()) / 3));
  EXPECT_TRUE(at::allclose(next[0], 3 + (halves[0].mean() + halves[1].mean()) / 2));
  EXPECT_EQ(next[1].item<int64_t>(), 4);
  EXPECT_FALSE(next[2].item<bool>());
}

// Two micro-batches in flight, as in a pipeline: each backward finds the buffer as its forward saw it.
TEST(OwnModule, ABufferThatIsChangedAndSavedIsThatOfItsMicroBatch) {
  struct AmaxImpl : torch::nn::Module {
    at::Tensor amax = register_buffer("amax", at::ones({1}));
    at::Tensor forward(const at::Tensor& x) {
      amax.copy_(at::maximum(amax, x.detach().abs().max()));
      return x * x / amax;
    }
  };
  const auto module = std::make_shared<AmaxImpl>();
  const auto layer = make_module_layer(
      "amax", module, [module](const Tensors& in) { return Tensors{module->forward(in[0])}; });
  const Tensors current{at::full({1}, 2.0F)};
  Tensors next{current[0].clone()};
  const Tensors inputs{at::full({3}, 4.0F), at::full({3}, 8.0F)};
  std::vector<Saved> saved(2);
  for (size_t i = 0; i < 2; ++i) {
    const LayerState state{current, next, static_cast<int64_t>(i)};
    layer->forward({}, {inputs[i]}, {.state = &state}, &saved[i]);
  }
  for (size_t i = 0; i < 2; ++i) {
    const Tensors back = layer->backward({}, {}, {inputs[i]}, saved[i], {at::ones({3})}, {});
    EXPECT_TRUE(at::allclose(back[0], at::full({3}, 2.0F))) << i;  // 2 x / amax, and amax is x
  }
}

TEST(OwnModule, BatchNormGoesOnFromTheMicroBatchBefore) {
  const auto layer = module_layer("norm", torch::nn::BatchNorm1d(3));
  torch::nn::BatchNorm1d alone(3);
  size_of(*layer, input());
  Tensors current, next;
  for (const StateSpec& spec : layer->state()) {
    current.push_back(spec.initial.clone());
    next.push_back(spec.initial.clone());
  }
  const LayerState state{current, next};
  for (const int64_t from : {0, 2}) {
    layer->forward(first_weights(*layer), {input().narrow(0, from, 2)}, {.state = &state}, nullptr);
    alone(input().narrow(0, from, 2));
  }
  EXPECT_TRUE(at::equal(next[0], alone->running_mean));
  EXPECT_TRUE(at::equal(next[1], alone->running_var));
  EXPECT_EQ(next[2].item<int64_t>(), 2);
}

namespace {

std::string loss_refusal(LossFunction function) {
  const auto loss = function_loss("odd", std::move(function));
  return test::error_text<ConfigError>([&] {
    loss->backward({}, {}, {input()}, {at::ones({4, 3})}, 1);
  });
}

}  // namespace

TEST(OwnLoss, IsOneNumberWithAGradient) {
  EXPECT_EQ(loss_refusal([](const at::Tensor& x, const at::Tensor& y) { return x - y; }),
            "loss odd returns Float [4, 3]; it must return one number, the sum over all targets");
  EXPECT_EQ(loss_refusal([](const at::Tensor& x, const at::Tensor& y) {
              return x.argmax(1).eq(y.argmax(1)).sum().to(at::kFloat);
            }),
            "loss odd: its number has no gradient; it must depend on what the loss reads by "
            "operations that have one (argmax and comparisons have none)");
}

TEST(OwnLoss, HasNoParameters) {
  const at::Tensor captured = at::ones({3}).set_requires_grad(true);
  EXPECT_EQ(loss_refusal([captured](const at::Tensor& x, const at::Tensor& y) {
              return (x * captured - y).square().sum();
            }),
            "loss odd: its function uses a parameter Float [3], which nothing would move; a loss "
            "has no parameters, so make the last layer of its module, by module_layer");
}

TEST(OwnLoss, LeavesWhatItReadsAsItIs) {
  const std::string text = loss_refusal([](const at::Tensor& x, const at::Tensor& y) {
    at::Tensor(y).zero_();
    return (x - y).square().sum();
  });
  EXPECT_NE(text.find("layer odd, the loss of (Float [4, 3], Float [4, 3]): it changes what it is "
                      "given in place"),
            std::string::npos)
      << text;
}

TEST(OwnLoss, KnowsWhetherItDraws) {
  const auto draws = function_loss("odd", [](const at::Tensor& x, const at::Tensor& y) {
    return (at::dropout(x, 0.5, /*train=*/true) - y).square().sum();
  });
  const auto pure = function_loss(
      "even", [](const at::Tensor& x, const at::Tensor& y) { return (x - y).square().sum(); });
  EXPECT_TRUE(pure->is_random()) << "nobody has seen it yet";
  const auto sum_of = [](const Loss& loss, const Pass& pass) {
    const RandomScope random(pass);
    return loss.backward({}, {}, {input()}, {at::ones({4, 3})}, 1).sum;
  };
  const double first = sum_of(*draws, {.seed = 1});
  sum_of(*pure, {});
  EXPECT_TRUE(draws->is_random());
  EXPECT_FALSE(pure->is_random());
  EXPECT_EQ(sum_of(*draws, {.seed = 1}), first);
  EXPECT_NE(sum_of(*draws, {.seed = 2}), first);
}

TEST(OwnChain, NamesOfParametersAreTheirOwn) {
  struct InnerImpl : torch::nn::Module {
    torch::nn::Linear b = register_module("b", torch::nn::Linear(3, 3));
    at::Tensor forward(const at::Tensor& x) { return b(x); }
  };
  Chain chain;
  const auto inner = std::make_shared<InnerImpl>();
  chain.add(make_module_layer(
      "a", inner, [inner](const Tensors& in) { return Tensors{inner->forward(in[0])}; }));
  chain.add(module_layer("a.b", torch::nn::Linear(3, 3)));
  EXPECT_EQ(
      test::error_text<ConfigError>([&] {
        chain.end_with(
            function_loss("loss", [](const at::Tensor& x, const at::Tensor&) { return x.sum(); }));
      }),
      "layers a and a.b both have a parameter a.b.weight; give one of the layers another name");
}

TEST(OwnChain, EndsOnce) {
  const auto loss = [] {
    return function_loss("loss", [](const at::Tensor& x, const at::Tensor&) { return x.sum(); });
  };
  Chain chain;
  chain.add(module_layer("one", torch::nn::Linear(3, 3))).end_with(loss());
  EXPECT_EQ(test::error_text<ConfigError>(
                [&] { chain.add(module_layer("two", torch::nn::Linear(3, 3))); }),
            "layer two is added after the loss; end_with comes last");
  EXPECT_EQ(test::error_text<ConfigError>([&] { chain.end_with(loss()); }),
            "the chain has a loss already: loss");
}

TEST(OwnChain, HasTargets) {
  Chain chain;
  chain.add(module_layer("one", torch::nn::Linear(3, 3)));
  EXPECT_EQ(
      test::error_text<ConfigError>([&] {
        chain.end_with(
            function_loss("loss", [](const at::Tensor& x, const at::Tensor&) { return x.sum(); }),
            {.targets = {}});
      }),
      "loss loss names no .targets, by which samples count; one that compares with what the "
      "chain was given names that field, .targets = {\"inputs\"} say");
}

// The field of that name, not what the layer itself makes.
TEST(OwnChain, MayReadAFieldThatIsCalledX) {
  Chain chain;
  chain.add(module_layer("one", torch::nn::Linear(3, 3)), {.reads = {"x"}});
  chain.add(module_layer("two", torch::nn::Linear(3, 2)));
  chain.end_with(function_loss(
      "loss", [](const at::Tensor& x, const at::Tensor& y) { return (x - y).square().sum(); }));
  const ChainShapes shapes = chain.shapes_for(
      {{"x", {{4, 3}, at::kFloat}}, {"targets", {{4, 2}, at::kFloat}}}, 4, at::kFloat);
  EXPECT_EQ(shapes.edges.back().at(0).sizes, (std::vector<int64_t>{4, 2}));
}

}  // namespace penstock::model
