// Frozen layers, and learning rates of layers, in chains of a user's own.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "penstock/base/text.h"
#include "penstock/data/loader.h"
#include "penstock/model/module_layer.h"
#include "penstock/model/module_random.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer_size.h"
#include "penstock/plan/inventory.h"
#include "penstock/train/batch_tensors.h"
#include "penstock/train/trainer.h"

#include "train/own_chains.h"

namespace penstock::train {
namespace {

// By their names in the chain; whether they learn, and at which part of the rate.
struct NamedParameter {
  std::string name;
  at::Tensor value;
  double lr_scale = 1;
  bool is_frozen = false;
};
std::vector<NamedParameter> parameters_of(const FrozenModules& modules) {
  std::vector<NamedParameter> all;
  const auto add = [&](const std::string& name, const auto& module, double scale, bool is_frozen) {
    for (const auto& one : module->named_parameters()) {
      const bool learns = !is_frozen && one.value().requires_grad();
      all.push_back({cat(name, ".", one.key()), one.value(), scale, !learns});
    }
  };
  add("encode 0", modules.encode_0, 1, true);
  add("encode 1", modules.encode_1, 1, true);
  add("start", modules.start, 1, false);
  add("slow", modules.slow, 0.5, false);
  add("between", modules.between, 1, true);
  add("after", modules.after, 1, false);
  add("cross", modules.cross, 1, false);
  return all;
}

// LibTorch alone, likewise; modules as they are after training.
FrozenModules trained_by_a_plain_loop(const config::Recipe& recipe) {
  const auto seed = static_cast<uint64_t>(recipe.train.seed);
  const model::RandomScope random(seed);
  FrozenModules modules;
  std::vector<NamedParameter> parameters = parameters_of(modules);
  for (NamedParameter& one : parameters) {
    one.value.set_requires_grad(!one.is_frozen);
  }
  data::Loader loader(sequences(), {.seed = seed, .batch = recipe.train.batch});
  const int64_t each = recipe.train.batch / recipe.plan.micro_batches;
  for (int64_t step = 0; step < recipe.train.steps; ++step) {
    const data::Batch batch = loader.next();
    const model::Fields fields = as_tensors(batch);
    for (int64_t first = 0; first < recipe.train.batch; first += each) {
      const at::Tensor encoded =
          modules.encode_1(modules.encode_0(fields.at("features").narrow(0, first, each)));
      at::Tensor x = modules.between(modules.slow(modules.start(encoded), encoded));
      x = modules.cross(modules.after(x), encoded);
      const at::Tensor sum = at::cross_entropy_loss(x.sum(1).narrow(1, 0, 3),
                                                    fields.at("label").narrow(0, first, each),
                                                    {},
                                                    at::Reduction::Sum);
      (sum / recipe.train.batch).backward();
    }
    const c10::NoGradGuard no_grad;
    for (NamedParameter& one : parameters) {
      if (!one.is_frozen) {
        one.value.sub_(one.value.grad() * (recipe.train.lr * one.lr_scale));
        one.value.mutable_grad() = at::Tensor();
      }
    }
  }
  return modules;
}

TEST(OwnFrozen, HasTheBitsOfAPlainLoop) {
  config::Recipe recipe = sgd_recipe("frozen_loop", 5);
  at::set_num_threads(1);
  const FrozenModules expected = trained_by_a_plain_loop(recipe);
  const auto expect_same = [&](const fs::path& checkpoint, const std::string& what) {
    for (const NamedParameter& one : parameters_of(expected)) {
      const at::Tensor stored = tensor_in(checkpoint / "model.safetensors", one.name, one.value);
      ASSERT_TRUE(stored.defined()) << one.name;
      EXPECT_TRUE(at::equal(stored, one.value.detach())) << one.name << what;
    }
  };
  expect_same(train(&frozen_chain, sequences(), recipe).summary.checkpoint, "");
  recipe.plan.pipeline = 2;
  expect_same(train(&frozen_chain, sequences(), recipe).summary.checkpoint, " of two ranks");
}

TEST(OwnFrozen, WeightsStayAsTheyAreWithAnythingSharded) {
  FrozenModules first;
  {
    const model::RandomScope random(static_cast<uint64_t>(config::Recipe().train.seed));
    first = FrozenModules();
  }
  for (const char* optimizer : {"adamw", "lamb"}) {
    for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
      for (const int64_t pipeline : {1, 2}) {
        config::Recipe recipe = recipe_for("frozen_sharded", 3);
        recipe.train.optimizer = optimizer;
        recipe.plan.schedule = "1f1b";
        recipe.plan.data = 2;
        recipe.plan.shard = shard;
        recipe.plan.pipeline = pipeline;
        recipe.plan.micro_batches = 2;
        const std::string what = cat(optimizer, ", ", shard, " on 2 x ", pipeline);
        const Summary summary = train(&frozen_chain, sequences(), recipe).summary;
        EXPECT_EQ(summary.rank_payload_bytes, summary.predicted_rank_payload_bytes) << what;
        EXPECT_EQ(summary.rank_peak_bytes, summary.predicted_rank_peak_bytes) << what;
        for (const NamedParameter& one : parameters_of(first)) {
          const at::Tensor stored =
              tensor_in(summary.checkpoint / "model.safetensors", one.name, one.value);
          ASSERT_TRUE(stored.defined()) << one.name;
          EXPECT_EQ(at::equal(stored, one.value.detach()), one.is_frozen)
              << one.name << ", " << what;
          const at::Tensor state = tensor_in(
              summary.checkpoint / "optimizer.safetensors", one.name + ".exp_avg", one.value);
          EXPECT_EQ(state.defined(), !one.is_frozen) << one.name << ", " << what;
        }
      }
    }
  }
}

// In bfloat16 layers see a copy; the master weights of what is frozen may be sharded beside it.
TEST(OwnFrozen, PassesTheCheckInBfloat16) {
  for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
    config::Recipe recipe = recipe_for("frozen_bf16");
    recipe.train.precision = "bfloat16";
    recipe.plan.data = 2;
    recipe.plan.shard = shard;
    recipe.plan.pipeline = 2;
    recipe.plan.micro_batches = 2;
    const auto make = [] {
      Chain chain;
      const auto to_bf16 = [](const Tensors& in) -> Tensors { return {in[0].to(at::kBFloat16)}; };
      chain.add(model::function_layer("lower", to_bf16), {.reads = {"features"}});
      for (const char* name : {"encode", "learn", "through", "head"}) {
        const bool is_frozen = name[0] == 'e' || name[0] == 't';
        chain.add(model::module_layer(name, torch::nn::Linear(kWidth, kWidth)),
                  {.is_frozen = is_frozen});
      }
      return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
    };
    const CheckOutcome outcome = Trainer(make, sequences(), recipe).check();
    EXPECT_TRUE(outcome.is_equal()) << shard << ": " << outcome.report.first_difference;
    EXPECT_EQ(outcome.report.rank_peak_bytes, outcome.predicted_peaks) << shard;
  }
}

// A layer's gradient and AdamW's two moments.
TEST(OwnFrozen, HoldsLessByItsGradientAndState) {
  const auto make = [](bool is_frozen) {
    return [is_frozen] {
      Chain chain;
      chain.add(model::module_layer("first", torch::nn::Linear(kWidth, kWidth)),
                {.reads = {"features"}, .is_frozen = is_frozen});
      chain.add(model::module_layer("second", torch::nn::Linear(kWidth, kWidth)));
      return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
    };
  };
  const auto held = [&](bool is_frozen) {
    const Chain chain = make(is_frozen)();
    const model::Parameters parameters(chain, at::kFloat, 0);
    return plan::holdings_of(parameters.inventory(),
                             optim::optimizer_size({}, parameters.inventory()),
                             /*compute_bytes=*/4)
        .bytes();
  };
  const int64_t elements = kWidth * kWidth + (kWidth + 15) / 16 * 16;  // each begins with 64 bytes
  EXPECT_EQ(held(false) - held(true), 3 * 4 * elements);
  const auto plan_peak = [&](bool is_frozen) {
    config::Recipe recipe = recipe_for("frozen_held");
    return Trainer(make(is_frozen), sequences(), recipe).run().peak_bytes;
  };
  EXPECT_GE(plan_peak(false) - plan_peak(true), 3 * 4 * elements);
}

TEST(OwnFrozen, OneBitOptimizersLeaveItAsItIs) {
  const auto make = [] {
    Chain chain;
    for (const char* name : {"first", "kept", "last"}) {
      const bool is_first = name[0] == 'f';
      const std::vector<std::string> reads{is_first ? "features" : "x"};
      chain.add(model::module_layer(name, torch::nn::Linear(kWidth, kWidth)),
                {.reads = reads, .is_frozen = name[0] == 'k'});
    }
    return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
  };
  for (const char* optimizer : {"onebit-adam", "zeroone-adam", "onebit-lamb"}) {
    for (const char* shard : {"none", "optimizer"}) {
      config::Recipe recipe = recipe_for("frozen_onebit", 6);
      recipe.train.optimizer = optimizer;
      recipe.train.freeze_step = recipe.train.var_freeze_step = 2;
      recipe.train.local_step_clipper = std::string(shard) == "none" ? 2 : 1;
      recipe.plan.data = 2;
      recipe.plan.shard = shard;
      recipe.plan.micro_batches = 2;
      const Summary summary = Trainer(make, sequences(), recipe).run();
      EXPECT_EQ(summary.rank_payload_bytes, summary.predicted_rank_payload_bytes) << optimizer;
      EXPECT_EQ(summary.rank_peak_bytes, summary.predicted_rank_peak_bytes) << optimizer;
    }
  }
}

}  // namespace
}  // namespace penstock::train
