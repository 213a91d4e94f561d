// What a user may get wrong in a chain of their own.
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/model/described_layer.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/module_layer.h"
#include "penstock/train/trainer.h"

#include "train/own_chains.h"

namespace penstock::train {
namespace {

TEST(OwnChainErrors, NameTheLayerAndTheShapesInOneLine) {
  const auto make = [] {
    Chain chain;
    chain.add(model::module_layer("wide", torch::nn::Linear(kWidth, 7)), {.reads = {"features"}});
    chain.add(model::module_layer("odd", torch::nn::Linear(8, 7)));
    return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
  };
  const std::string text = message_of([&] { Trainer(make, sequences(), recipe_for("odd")).run(); });
  EXPECT_NE(text.find("layer odd, forward of Float [4, 10, 7]: mat1 and mat2"), std::string::npos)
      << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(OwnChainErrors, AFieldThatTheDataLacks) {
  const auto make = [] {
    Chain chain;
    chain.add(model::module_layer("first", torch::nn::Linear(kWidth, 7)), {.reads = {"pixels"}});
    return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
  };
  const std::string text =
      message_of([&] { Trainer(make, sequences(), recipe_for("field")).run(); });
  EXPECT_NE(text.find("\"pixels\""), std::string::npos) << text;
  EXPECT_NE(text.find("features, label, length"), std::string::npos) << text;
}

// As values of a recipe file are.
TEST(OwnChainErrors, ValuesThatNoRecipeMayHave) {
  const auto refused = [](const std::function<void(config::Recipe&)>& change) {
    config::Recipe recipe = recipe_for("values");
    change(recipe);
    return message_of([&] { Trainer(&masked_chain, sequences(), recipe); });
  };
  EXPECT_EQ(
      refused([](config::Recipe& recipe) { recipe.plan.memory = "20 kilo"; }),
      "the recipe: plan.memory = \"20 kilo\" is not allowed; it takes bytes, as in \"600MiB\" "
      "or \"8GB\"");
  EXPECT_EQ(refused([](config::Recipe& recipe) { recipe.train.lr = -1; }),
            "the recipe: train.lr = -1.0 is not allowed; it takes 0 or more");
  EXPECT_NE(refused([](config::Recipe& recipe) {
              recipe.train.optimizer = "adam";
            }).find("train.optimizer = \"adam\" is not allowed"),
            std::string::npos);
  EXPECT_NE(refused([](config::Recipe& recipe) {
              recipe.train.batch = 0;
            }).find("train.batch = 0 is not allowed"),
            std::string::npos);
}

TEST(OwnChainErrors, ALimitThatIsTooSmallNamesTheLeastThatDoes) {
  config::Recipe recipe = recipe_for("too_small");
  const int64_t least = least_bytes(&masked_chain, sequences(), recipe);
  for (const int64_t bytes : {int64_t{1024}, least / 2, least - 1}) {
    recipe.plan.memory = cat(bytes);
    const std::string text = message_of([&] { Trainer(&masked_chain, sequences(), recipe).run(); });
    EXPECT_NE(text.find(format_count(least)), std::string::npos) << text;
  }
  recipe.plan.memory = cat(least);
  EXPECT_EQ(message_of([&] { Trainer(&masked_chain, sequences(), recipe).run(); }), "");
}

TEST(OwnChainErrors, TwoLayersOfOneName) {
  const auto make = [] {
    Chain chain;
    chain.add(model::module_layer("one", torch::nn::Linear(kWidth, 7)), {.reads = {"features"}});
    chain.add(model::module_layer("one", torch::nn::Linear(7, 7)));
    return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
  };
  EXPECT_EQ(
      message_of([&] { Trainer(make, sequences(), recipe_for("name")).run(); }),
      "two layers are called one; each has a name of its own, which its parameters begin with");
}

TEST(OwnChainErrors, AChainWithoutALoss) {
  const auto make = [] {
    Chain chain;
    chain.add(model::module_layer("one", torch::nn::Linear(kWidth, 7)), {.reads = {"features"}});
    return chain;
  };
  EXPECT_EQ(message_of([&] { Trainer(make, sequences(), recipe_for("loss")).run(); }),
            "the chain has no loss: end it with Chain::end_with");
}

TEST(OwnChainErrors, AModuleThatIsMadeOnceForAllChains) {
  torch::nn::Linear once(kWidth, 7);
  const auto make = [&] {
    Chain chain;
    chain.add(model::module_layer("one", once), {.reads = {"features"}});
    return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
  };
  config::Recipe recipe = recipe_for("once");
  recipe.plan.data = 2;
  const std::string text = message_of([&] { Trainer(make, sequences(), recipe).run(); });
  EXPECT_NE(text.find("make modules inside the function that makes the chain"), std::string::npos)
      << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

// x * w by hand, with what a user may get wrong.
class ScaleLayer final : public model::DescribedLayer {
 public:
  ScaleLayer(const std::string& save_mode, bool says_gradient)
      : DescribedLayer(
            "scale", {{.name = "scale.weight", .shape = {kWidth}}}, {{.name = save_mode}}),
        says_gradient_(says_gradient) {}

  model::Tensors forward(model::Weights weights,
                         const model::Tensors& input,
                         const model::Pass&,
                         model::Saved*) const override {
    return {input[0] * weights[0]};
  }
  model::Tensors backward(model::Weights weights,
                          model::Gradients gradients,
                          const model::Tensors& input,
                          model::Saved,
                          const model::Tensors& output_gradient,
                          const model::Pass&) const override {
    gradients[0].add_((input[0] * output_gradient[0]).flatten(0, -2).sum(0));
    return {output_gradient[0] * weights[0]};
  }
  model::LayerSize size_for(const model::Shapes& inputs, at::ScalarType, int32_t) const override {
    model::LayerSize size{.outputs = inputs, .kept_bytes = inputs[0].bytes()};
    size.outputs[0].has_gradient = says_gradient_;
    return size;
  }

 private:
  bool says_gradient_;
};

Chain with_scale(const std::string& save_mode, bool says_gradient) {
  Chain chain;
  chain.add(std::make_unique<ScaleLayer>(save_mode, says_gradient), {.reads = {"features"}});
  chain.add(model::module_layer("b", torch::nn::Linear(kWidth, 7)));
  return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
}

TEST(OwnChainErrors, NamesOfSaveModesGoIntoPrograms) {
  for (const char* name : {"", "-", "nothing", "two words"}) {
    const std::string text = message_of([&] { with_scale(name, true); });
    EXPECT_EQ(text.find(cat("layer scale: a save mode cannot be called \"", name, "\"")), 0U)
        << text;
  }
  EXPECT_EQ(message_of([] { with_scale("all-of_it", true); }), "");
}

TEST(OwnChainErrors, ALayerThatLearnsNeedsAGradient) {
  const auto train = [](bool says_gradient) {
    return message_of([&] {
      Trainer([&] { return with_scale("all", says_gradient); }, sequences(), recipe_for("gradient"))
          .run();
    });
  };
  EXPECT_EQ(train(true), "");
  const std::string text = train(false);
  EXPECT_EQ(text.find("layer scale has parameters that learn, and says that no gradient"), 0U)
      << text;
}

Chain two_layers(model::LayerOptions first, model::LayerOptions second) {
  Chain chain;
  first.reads = {"features"};
  chain.add(model::module_layer("a", torch::nn::Linear(kWidth, kWidth)), std::move(first));
  chain.add(model::module_layer("b", torch::nn::Linear(kWidth, kWidth)), std::move(second));
  return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
}

TEST(OwnChainErrors, WhatIsFrozenMustBeSensible) {
  EXPECT_EQ(message_of([] { two_layers({.is_frozen = true}, {.is_frozen = true}); }),
            "nothing learns: all parameters of the chain are frozen");
  EXPECT_EQ(message_of([] { two_layers({.lr_scale = 0}, {}); }),
            "layer a: lr_scale = 0; it must be above 0, and is_frozen keeps weights as they are");
  EXPECT_EQ(
      message_of([] {
        const model::Gpt2Shape shape{.layers = 1, .width = 8, .heads = 2};
        Chain chain;
        chain.add(model::make_gpt2_embedding(shape), {.lr_scale = 0.5});
        chain.end_with(model::make_gpt2_head(shape));
      }),
      "embedding and head share the parameter transformer.wte.weight: they must have the same "
      "lr_scale and is_frozen");
  config::Recipe recipe = recipe_for("onebit_rates");
  recipe.train.optimizer = "onebit-adam";
  const auto make = [] { return two_layers({.lr_scale = 0.5}, {}); };
  const std::string text = message_of([&] { Trainer(make, sequences(), recipe).run(); });
  EXPECT_EQ(text,
            "parameter a.weight has lr_scale = 0.5; train.optimizer = \"onebit-adam\" has one "
            "learning rate for all: take adamw, sgd or lamb");
}

TEST(OwnChainErrors, AHandWrittenLayerIsNotFrozen) {
  const std::string text = message_of([] {
    Chain chain;
    chain.add(model::make_gpt2_mlp({.layers = 1, .width = 8, .heads = 2}, 0), {.is_frozen = true});
  });
  EXPECT_EQ(
      text,
      "layer block 0 mlp cannot be frozen: its backward always computes the gradients of its "
      "parameters; modules can (module_layer), and layers whose can_skip_gradients() says so");
}

TEST(OwnChainErrors, OptionsOfFamiliesAreRefused) {
  config::Recipe recipe = recipe_for("options");
  recipe.model.width = 99;
  const std::string text = message_of([&] { Trainer(&masked_chain, sequences(), recipe); });
  EXPECT_NE(text.find("model.width = 99"), std::string::npos) << text;
}

}  // namespace
}  // namespace penstock::train
