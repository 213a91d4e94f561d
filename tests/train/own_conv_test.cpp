// Batch norm and dropout of torch::nn modules in a chain of a user's own.
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>

#include "penstock/base/text.h"
#include "penstock/checkpoint/safetensors.h"
#include "penstock/data/loader.h"
#include "penstock/data/memory_dataset.h"
#include "penstock/model/module_layer.h"
#include "penstock/model/module_random.h"
#include "penstock/train/batch_tensors.h"
#include "penstock/train/trainer.h"
#include "train/own_chains.h"

namespace penstock::train {
namespace {

data::DatasetPtr images() {
  auto dataset = std::make_shared<data::MemoryDataset>();
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 48 * 3 * 8 * 8; ++i) {
    pixels.push_back(std::cos(0.11f * static_cast<float>(i * 31 % 2003)));
  }
  for (int64_t i = 0; i < 48; ++i) {
    labels.push_back(i * 5 % 4);
  }
  dataset->add<float>("inputs", {3, 8, 8}, pixels);
  dataset->add<int64_t>("targets", {}, labels);
  return dataset;
}

torch::nn::Sequential conv_block(int64_t from, int64_t to) {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1)),
                               torch::nn::BatchNorm2d(to),
                               torch::nn::Dropout(0.2));
}

Chain conv_net() {
  Chain chain;
  chain.add(model::module_layer("block 0", conv_block(3, 8)));
  chain.add(model::function_layer("relu 0",
                                  [](const Tensors& in) -> Tensors { return {at::relu(in[0])}; }));
  chain.add(model::module_layer("block 1", conv_block(8, 8)));
  chain.add(model::function_layer("relu 1",
                                  [](const Tensors& in) -> Tensors { return {at::relu(in[0])}; }));
  chain.add(model::module_layer("block 2", conv_block(8, 4)));
  return std::move(
      chain.end_with(model::function_loss("loss", [](const at::Tensor& x, const at::Tensor& label) {
        return at::cross_entropy_loss(x.mean({2, 3}), label, {}, at::Reduction::Sum);
      })));
}

TEST(OwnConvNet, HasTheBitsAndStatisticsOfOneDeviceInEveryPlan) {
  const Result plain = train(&conv_net, images(), recipe_for("conv"));
  ASSERT_FALSE(plain.state.empty());
  const int64_t least = least_bytes(&conv_net, images(), recipe_for("conv_least"));
  const int64_t most = plain.summary.predicted_rank_peak_bytes.at(0);
  for (int i = 0; i < 5; ++i) {
    config::Recipe recipe = recipe_for("conv_limited");
    recipe.plan.memory = cat(least + (most - least) * i / 4);
    const Result limited = train(&conv_net, images(), recipe);
    EXPECT_EQ(limited.summary.losses, plain.summary.losses);
    EXPECT_TRUE(limited.weights == plain.weights) << recipe.plan.memory;
    EXPECT_TRUE(limited.state == plain.state) << recipe.plan.memory;
    EXPECT_EQ(limited.summary.rank_peak_bytes, limited.summary.predicted_rank_peak_bytes);
  }
  config::Recipe recipe = recipe_for("conv_ranks");
  recipe.plan.pipeline = 2;
  const Result ranks = train(&conv_net, images(), recipe);
  EXPECT_TRUE(ranks.weights == plain.weights);
  EXPECT_TRUE(ranks.state == plain.state);
  EXPECT_EQ(ranks.summary.rank_peak_bytes, ranks.summary.predicted_rank_peak_bytes);
}

TEST(OwnConvNet, GoesOnWithItsStatistics) {
  const Result whole = train(&conv_net, images(), recipe_for("conv_whole", 6));
  config::Recipe recipe = recipe_for("conv_parts");
  recipe.plan.pipeline = 2;
  train(&conv_net, images(), recipe);
  recipe.plan.pipeline = 1;
  recipe.train.steps = 6;
  const Result resumed = train(&conv_net, images(), recipe, recipe.run.out);
  EXPECT_TRUE(resumed.weights == whole.weights);
  EXPECT_TRUE(resumed.state == whole.state);
}

// Replicas have forwards of their own; what they leave becomes one before each step.
TEST(OwnConvNet, PassesTheCheckAsReplicas) {
  for (const char* shard : {"none", "parameters"}) {
    for (const int64_t pipeline : {1, 2}) {
      config::Recipe recipe = recipe_for("conv_replicas");
      recipe.plan.data = 2;
      recipe.plan.shard = shard;
      recipe.plan.pipeline = pipeline;
      recipe.plan.micro_batches = 2;
      const CheckOutcome outcome = Trainer(&conv_net, images(), recipe).check();
      EXPECT_TRUE(outcome.is_equal())
          << shard << " on 2 x " << pipeline << ": " << outcome.report.first_difference;
      EXPECT_EQ(outcome.report.rank_peak_bytes, outcome.predicted_peaks);
      const Summary summary = train(&conv_net, images(), recipe).summary;
      EXPECT_EQ(summary.rank_payload_bytes, summary.predicted_rank_payload_bytes);
      EXPECT_EQ(summary.rank_peak_bytes, summary.predicted_rank_peak_bytes);
    }
  }
}

int64_t batches_tracked(const fs::path& checkpoint) {
  const checkpoint::SafetensorsFile file(checkpoint / "layers.safetensors");
  const checkpoint::TensorEntry* entry = file.find("block 0.1.num_batches_tracked");
  int64_t count = -1;
  if (entry != nullptr) {
    file.read(*entry, 0, std::as_writable_bytes(std::span(&count, 1)));
  }
  return count;
}

TEST(OwnConvNet, CountsTheMicroBatchesOfAllReplicas) {
  config::Recipe recipe = recipe_for("conv_counted", 3);
  recipe.plan.data = 2;
  recipe.plan.micro_batches = 2;
  const Result replicas = train(&conv_net, images(), recipe);
  EXPECT_EQ(batches_tracked(replicas.summary.checkpoint), 3 * 2 * 2);
  // And one rank goes on from there.
  recipe.plan.data = 1;
  recipe.plan.micro_batches = 4;
  recipe.train.steps = 4;
  const Result one = train(&conv_net, images(), recipe, recipe.run.out);
  EXPECT_EQ(batches_tracked(one.summary.checkpoint), 4 * 4);
}

// LibTorch alone: the loop that a user would have written, with the micro-batches, the order of samples
// and the random numbers of the run.
struct PlainLoop {
  std::vector<torch::nn::Sequential> blocks;

  explicit PlainLoop(uint64_t seed) {
    const model::RandomScope random(seed);
    for (const auto& [from, to] : {std::pair(3, 8), {8, 8}, {8, 4}}) {
      blocks.push_back(conv_block(from, to));
    }
  }

  at::Tensor loss(at::Tensor x, const at::Tensor& label, model::Pass pass) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      pass.layer = static_cast<int64_t>(2 * i);
      const model::RandomScope random(pass);
      x = blocks[i]->forward(x);
      x = i + 1 < blocks.size() ? at::relu(x) : x;
    }
    return at::cross_entropy_loss(x.mean({2, 3}), label, {}, at::Reduction::Sum);
  }

  void train(const config::Recipe& recipe, const data::DatasetPtr& dataset) {
    const auto seed = static_cast<uint64_t>(recipe.train.seed);
    data::Loader loader(dataset, {.seed = seed, .batch = recipe.train.batch});
    const int64_t each = recipe.train.batch / recipe.plan.micro_batches;
    for (int64_t step = 0; step < recipe.train.steps; ++step) {
      const data::Batch batch = loader.next();
      const model::Fields fields = as_tensors(batch);
      for (int64_t first = 0; first < recipe.train.batch; first += each) {
        const at::Tensor sum =
            loss(fields.at("inputs").narrow(0, first, each),
                 fields.at("targets").narrow(0, first, each),
                 {.seed = seed, .step = step, .first_sample = step * recipe.train.batch + first});
        (sum / recipe.train.batch).backward();
      }
      const c10::NoGradGuard no_grad;
      for (const torch::nn::Sequential& block : blocks) {
        for (at::Tensor& parameter : block->parameters()) {
          parameter.sub_(parameter.grad() * recipe.train.lr);
          parameter.mutable_grad() = at::Tensor();
        }
      }
    }
  }
};

TEST(OwnConvNet, HasTheBitsAndStatisticsOfAPlainLoop) {
  config::Recipe recipe = recipe_for("conv_loop", 5);
  recipe.train.optimizer = "sgd";
  recipe.train.momentum = 0;
  recipe.train.weight_decay = 0;
  recipe.train.clip = 0;
  recipe.train.lr = 0.0625;  // a power of two: products with it are exact, fused or not
  recipe.plan.micro_batches = 2;
  const Result ours = train(&conv_net, images(), recipe);
  at::set_num_threads(1);
  PlainLoop loop(static_cast<uint64_t>(recipe.train.seed));
  loop.train(recipe, images());
  const checkpoint::SafetensorsFile weights(ours.summary.checkpoint / "model.safetensors");
  const checkpoint::SafetensorsFile state(ours.summary.checkpoint / "layers.safetensors");
  const auto expect_same = [](const checkpoint::SafetensorsFile& file,
                              const std::string& name,
                              const at::Tensor& expected) {
    const checkpoint::TensorEntry* entry = file.find(name);
    ASSERT_NE(entry, nullptr) << name;
    const at::Tensor stored = at::empty_like(expected);
    file.read(*entry, 0, {static_cast<std::byte*>(stored.data_ptr()), size_t{stored.nbytes()}});
    EXPECT_TRUE(at::equal(stored, expected.detach())) << name;
  };
  for (size_t i = 0; i < loop.blocks.size(); ++i) {
    for (const auto& one : loop.blocks[i]->named_parameters()) {
      expect_same(weights, cat("block ", i, ".", one.key()), one.value());
    }
    for (const auto& one : loop.blocks[i]->named_buffers()) {
      expect_same(state, cat("block ", i, ".", one.key()), one.value());
    }
  }
  EXPECT_EQ(batches_tracked(ours.summary.checkpoint), 5 * 2);
}

}  // namespace
}  // namespace penstock::train
