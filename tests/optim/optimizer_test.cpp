// The updates themselves are checked against PyTorch in tests/model/reference_test.cpp and
// against formulas in tests/kernels; here what lies around them.
#include "penstock/optim/optimizer.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/module_layer.h"
#include "penstock/model/parameters.h"

#include "support/random_tensor.h"

namespace penstock::optim {

namespace {

model::Chain small_chain() {
  return model::make_gpt2(
      {.layers = 2, .width = 48, .heads = 4, .context = 24, .vocabulary = 3000});
}

void fill_gradients(model::Parameters& parameters, uint64_t seed) {
  for (const model::Parameter& parameter : parameters.all()) {
    at::Tensor(parameter.gradient).copy_(test::random_tensor(parameter.spec.shape, ++seed));
  }
}

struct ThreadCount {
  explicit ThreadCount(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~ThreadCount() { at::set_num_threads(before); }
  int before;
};

}  // namespace

TEST(GradientNorm, EqualsTheNormOfAllGradients) {
  const model::Chain chain = small_chain();
  model::Parameters parameters(chain, at::kFloat, 1);
  fill_gradients(parameters, 10);
  const double expected = parameters.flat_gradients().to(at::kDouble).norm().item<double>();
  EXPECT_NEAR(gradient_norm(parameters) / expected, 1, 1e-12);
}

TEST(GradientNorm, HasTheSameBitsForAnyNumberOfThreads) {
  const model::Chain chain = small_chain();
  model::Parameters parameters(chain, at::kFloat, 1);
  fill_gradients(parameters, 10);
  const ThreadCount one(1);
  const double norm = gradient_norm(parameters);
  for (const int threads : {2, 3, 7}) {
    const ThreadCount several(threads);
    EXPECT_EQ(gradient_norm(parameters), norm) << threads;
  }
}

TEST(ClipScale, LeavesSmallGradientsAlone) {
  EXPECT_EQ(clip_scale(0.5, 1), 1);
  EXPECT_EQ(clip_scale(1e9, 0), 1);
  EXPECT_NEAR(clip_scale(4, 1), 0.25, 1e-6);
}

TEST(Optimizer, UpdatesHaveTheSameBitsForAnyNumberOfThreads) {
  for (const char* kind : {"adamw", "sgd", "lamb"}) {
    const config::TrainOptions train{.optimizer = kind};
    const model::Chain chain = small_chain();
    model::Parameters a(chain, at::kFloat, 1), b(chain, at::kFloat, 1);
    const auto first = make_optimizer(train, a), second = make_optimizer(train, b);
    for (int step = 0; step < 3; ++step) {
      fill_gradients(a, 10);
      fill_gradients(b, 10);
      {
        const ThreadCount several(3);
        first->step(a, {1e-2, {}}, 0.7);
      }
      const ThreadCount one(1);
      second->step(b, {1e-2, {}}, 0.7);
    }
    EXPECT_TRUE(at::equal(a.flat_weights(), b.flat_weights())) << kind;
  }
}

TEST(Optimizer, DecaysNoBiasAndNoNorm) {
  for (const char* kind : {"adamw", "sgd", "lamb"}) {
    const config::TrainOptions train{.optimizer = kind, .weight_decay = 0.5};
    const model::Chain chain = small_chain();
    model::Parameters parameters(chain, at::kFloat, 1);
    const at::Tensor before = parameters.flat_weights().clone();
    make_optimizer(train, parameters)->step(parameters, {1e-2, {}}, 1);  // gradients are zero
    for (const model::Parameter& parameter : parameters.all()) {
      const at::Tensor old =
          before.narrow(0, parameter.offset, parameter.spec.count()).view(parameter.spec.shape);
      const bool is_matrix = parameter.spec.shape.size() > 1;
      EXPECT_EQ(at::equal(parameter.weight, old), !is_matrix) << kind << " " << parameter.spec.name;
    }
  }
}

TEST(Optimizer, PaddingStaysZero) {
  const model::Chain chain =
      model::make_gpt2({.layers = 1, .width = 10, .heads = 2, .context = 7, .vocabulary = 13});
  model::Parameters parameters(chain, at::kFloat, 1);
  fill_gradients(parameters, 3);
  make_optimizer({.optimizer = "adamw"}, parameters)->step(parameters, {1e-2, {}}, 1);
  double sum = 0;
  for (const model::Parameter& parameter : parameters.all()) {
    sum += parameter.weight.abs().to(at::kDouble).sum().item<double>();
  }
  EXPECT_NEAR(parameters.flat_weights().abs().to(at::kDouble).sum().item<double>(), sum, 1e-9);
}

namespace {

model::Chain two_linears(double lr_scale) {
  model::Chain chain;
  for (const auto& [name, scale] : {std::pair("slow", lr_scale), {"usual", 1.0}}) {
    auto linear = torch::nn::Linear(48, 48);
    const c10::NoGradGuard no_grad;
    linear->weight.copy_(test::random_tensor({48, 48}, 3));
    linear->bias.copy_(test::random_tensor({48}, 4));
    chain.add(model::module_layer(name, linear), {.lr_scale = scale});
  }
  return std::move(chain.end_with(model::function_loss(
      "loss", [](const at::Tensor& x, const at::Tensor&) { return x.sum(); })));
}

}  // namespace

TEST(Optimizer, AParameterMovesAtItsOwnRate) {
  constexpr double kScale = 0.375;
  for (const char* kind : {"adamw", "sgd", "lamb"}) {
    config::TrainOptions train{.optimizer = kind};
    train.weight_decay = 0.1;
    const model::Chain scaled = two_linears(kScale), plain = two_linears(1);
    model::Parameters ours(scaled, at::kFloat, 1), slow(plain, at::kFloat, 1),
        usual(plain, at::kFloat, 1);
    const double rate = 0.3;
    for (const auto& [parameters, lr] :
         {std::pair(&ours, rate), {&slow, rate * kScale}, {&usual, rate}}) {
      const auto optimizer = make_optimizer(train, *parameters);
      for (int step = 0; step < 3; ++step) {
        fill_gradients(*parameters, 10);
        optimizer->step(*parameters, {lr, {}}, 0.7);
      }
    }
    for (const char* name : {"weight", "bias"}) {
      EXPECT_TRUE(
          at::equal(ours.find(cat("slow.", name))->weight, slow.find(cat("slow.", name))->weight))
          << kind;
      EXPECT_TRUE(at::equal(ours.find(cat("usual.", name))->weight,
                            usual.find(cat("usual.", name))->weight))
          << kind;
      EXPECT_FALSE(
          at::equal(slow.find(cat("slow.", name))->weight, usual.find(cat("slow.", name))->weight))
          << kind;
    }
  }
}

TEST(Optimizer, OneBitOptimizersRefuseARateOfItsOwn) {
  const model::Chain chain = two_linears(0.5);
  const model::Parameters parameters(chain, at::kFloat, 1);
  for (const char* kind : {"onebit-adam", "zeroone-adam", "onebit-lamb"}) {
    try {
      make_optimizer({.optimizer = kind}, parameters);
      ADD_FAILURE() << kind;
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()),
                cat("parameter slow.weight has lr_scale = 0.5; train.optimizer = \"",
                    kind,
                    "\" has one learning rate for all: take adamw, sgd or lamb"));
    }
  }
}

}  // namespace penstock::optim
