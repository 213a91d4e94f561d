// Batch norm and dropout of torch::nn modules in a chain of a user's own.
#include <cmath>
#include <set>
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
#include "penstock/memory/cpu_allocator.h"
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
  memory::Account& aside;
  std::vector<torch::nn::Sequential> blocks;

  // In an account of its own: what it holds is not the run's.
  explicit PlainLoop(uint64_t seed) : aside(memory::make_account()) {
    const memory::AccountScope scope(aside);
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

  // Returns the losses of the steps.
  std::vector<double> train(const config::Recipe& recipe, const data::DatasetPtr& dataset) {
    const memory::AccountScope scope(aside);
    const auto seed = static_cast<uint64_t>(recipe.train.seed);
    data::Loader loader(dataset, {.seed = seed, .batch = recipe.train.batch});
    const int64_t each = recipe.train.batch / recipe.plan.micro_batches;
    std::vector<double> losses;
    for (int64_t step = 0; step < recipe.train.steps; ++step) {
      const data::Batch batch = loader.next();
      const model::Fields fields = as_tensors(batch);
      double sums = 0;
      for (int64_t first = 0; first < recipe.train.batch; first += each) {
        const at::Tensor sum =
            loss(fields.at("inputs").narrow(0, first, each),
                 fields.at("targets").narrow(0, first, each),
                 {.seed = seed, .step = step, .first_sample = step * recipe.train.batch + first});
        sums += sum.item<double>();
        (sum / recipe.train.batch).backward();
      }
      losses.push_back(sums / static_cast<double>(recipe.train.batch));
      const c10::NoGradGuard no_grad;
      for (const torch::nn::Sequential& block : blocks) {
        for (at::Tensor& parameter : block->parameters()) {
          parameter.sub_(parameter.grad() * recipe.train.lr);
          parameter.mutable_grad() = at::Tensor();
        }
      }
    }
    return losses;
  }

  void expect_same(const fs::path& checkpoint, const std::string& what) const {
    const auto expect = [&](const char* file, const std::string& name, const at::Tensor& expected) {
      const at::Tensor stored = tensor_in(checkpoint / file, name, expected);
      ASSERT_TRUE(stored.defined()) << name << ", " << what;
      EXPECT_TRUE(at::equal(stored, expected.detach())) << name << ", " << what;
    };
    for (size_t i = 0; i < blocks.size(); ++i) {
      for (const auto& one : blocks[i]->named_parameters()) {
        expect("model.safetensors", cat("block ", i, ".", one.key()), one.value());
      }
      for (const auto& one : blocks[i]->named_buffers()) {
        expect("layers.safetensors", cat("block ", i, ".", one.key()), one.value());
      }
    }
  }
};

// Losses, weights and statistics: of one device, at five limits, cut into two ranks, and resumed.
TEST(OwnConvNet, HasTheBitsAndStatisticsOfAPlainLoop) {
  constexpr int64_t kSteps = 5;
  config::Recipe recipe = sgd_recipe("conv_loop", kSteps);
  recipe.plan.micro_batches = 2;
  at::set_num_threads(1);
  PlainLoop loop(static_cast<uint64_t>(recipe.train.seed));
  const std::vector<double> losses = loop.train(recipe, images());
  EXPECT_LT(losses.back(), losses.front());
  const auto expect_loop = [&](const config::Recipe& one, const std::string& what) {
    const Result ours = train(&conv_net, images(), one);
    EXPECT_EQ(ours.summary.losses, losses) << what;
    EXPECT_EQ(ours.summary.rank_peak_bytes, ours.summary.predicted_rank_peak_bytes) << what;
    loop.expect_same(ours.summary.checkpoint, what);
    EXPECT_EQ(batches_tracked(ours.summary.checkpoint), kSteps * 2) << what;
    return ours;
  };
  const int64_t most = expect_loop(recipe, "no limit").summary.peak_bytes;
  const int64_t least = least_bytes(&conv_net, images(), recipe);
  ASSERT_LT(least, most);
  std::set<int64_t> peaks;
  for (int i = 0; i < 5; ++i) {
    config::Recipe limited = recipe;
    limited.plan.memory = cat(least + (most - least) * i / 4);
    peaks.insert(expect_loop(limited, limited.plan.memory).summary.peak_bytes);
  }
  EXPECT_GE(peaks.size(), 3u) << "limits that change nothing show nothing";
  recipe.plan.pipeline = 2;
  for (const char* schedule : {"gpipe", "1f1b"}) {
    recipe.plan.schedule = schedule;
    expect_loop(recipe, schedule);
  }
  recipe.plan.memory = cat(least_bytes(&conv_net, images(), recipe));
  expect_loop(recipe, "two ranks in the least memory");

  recipe.train.steps = 2;
  train(&conv_net, images(), recipe);
  recipe.plan.pipeline = 1;
  recipe.plan.memory = "";
  recipe.train.steps = kSteps;
  const Result resumed = train(&conv_net, images(), recipe, recipe.run.out);
  EXPECT_EQ(resumed.summary.losses, std::vector(losses.begin() + 2, losses.end()));
  loop.expect_same(resumed.summary.checkpoint, "resumed");
}

}  // namespace
}  // namespace penstock::train
