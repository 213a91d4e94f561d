// Chains of a user's own through train::Trainer: several tensors on the edges, what passes by unchanged,
// batch norm and dropout of torch::nn modules; under limits, on ranks, killed and resumed.
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "penstock/base/error.h"
#include "penstock/base/units.h"
#include "penstock/checkpoint/safetensors.h"
#include "penstock/data/loader.h"
#include "penstock/data/memory_dataset.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/module_layer.h"
#include "penstock/model/module_random.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer_size.h"
#include "penstock/plan/inventory.h"
#include "penstock/train/batch_tensors.h"
#include "penstock/train/trainer.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using model::Chain;
using model::Tensors;

constexpr int64_t kWidth = 24, kLength = 10;

fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::path(testing::TempDir()) / ("own_chain_" + name);
  fs::remove_all(folder);
  return folder;
}

data::DatasetPtr sequences() {
  auto dataset = std::make_shared<data::MemoryDataset>();
  std::vector<float> features;
  std::vector<int64_t> labels, lengths;
  for (int64_t i = 0; i < 64 * kLength * kWidth; ++i) {
    features.push_back(std::sin(0.37f * static_cast<float>(i * i % 1009)));
  }
  for (int64_t i = 0; i < 64; ++i) {
    labels.push_back(i * 7 % 3);
    lengths.push_back(1 + i % kLength);
  }
  dataset->add<float>("features", {kLength, kWidth}, features);
  dataset->add<int64_t>("length", {}, lengths);
  dataset->add<int64_t>("label", {}, labels);
  return dataset;
}

struct MaskedImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    return x + at::tanh(linear(x)) * mask;
  }
};
TORCH_MODULE(Masked);

std::unique_ptr<model::Loss> label_loss() {
  return model::function_loss("loss", [](const at::Tensor& x, const at::Tensor& label) {
    return at::cross_entropy_loss(x.sum(1).narrow(1, 0, 3), label, {}, at::Reduction::Sum);
  });
}

// A mask that the first layer makes, read by all others.
Chain masked_chain() {
  Chain chain;
  chain.add(model::function_layer(
                "mask",
                [](const Tensors& in) -> Tensors {
                  const at::Tensor places = at::arange(kLength).unsqueeze(0);
                  return {in[0] * 0.5, places.lt(in[1].unsqueeze(1)).unsqueeze(2).to(at::kFloat)};
                }),
            {.reads = {"features", "length"}, .writes = {"x", "mask"}});
  for (int i = 0; i < 6; ++i) {
    chain.add(model::module_layer(cat("block ", i), Masked()), {.reads = {"x", "mask"}});
  }
  return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
}

struct CrossImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(kWidth, kWidth));
  at::Tensor forward(const at::Tensor& x, const at::Tensor& encoded) {
    return at::tanh(linear(x) + encoded.mean(1, true) * x);
  }
};
TORCH_MODULE(Cross);

// An encoder's output, read by three later layers with others in between, and by the gradient of which
// the encoder learns.
Chain encoder_chain() {
  Chain chain;
  chain.add(model::module_layer("encode 0", torch::nn::Linear(kWidth, kWidth)),
            {.reads = {"features"}, .writes = {"e"}});
  chain.add(model::module_layer("encode 1", torch::nn::Linear(kWidth, kWidth)),
            {.reads = {"e"}, .writes = {"encoded"}});
  chain.add(model::module_layer("start", torch::nn::Linear(kWidth, kWidth)),
            {.reads = {"encoded"}});
  chain.add(model::module_layer("cross 0", Cross()), {.reads = {"x", "encoded"}});
  chain.add(model::module_layer("between", torch::nn::Linear(kWidth, kWidth)));
  chain.add(model::module_layer("cross 1", Cross()), {.reads = {"x", "encoded"}});
  chain.add(model::module_layer("between 1", torch::nn::Linear(kWidth, kWidth)));
  chain.add(model::module_layer("cross 2", Cross()), {.reads = {"x", "encoded"}});
  return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
}

// What is frozen: an encoder, whose output two later layers read; a bias of a layer that learns; a layer
// through which gradients pass. One layer learns at half the rate.
struct FrozenModules {
  torch::nn::Linear encode_0{kWidth, kWidth}, encode_1{kWidth, kWidth}, start{kWidth, kWidth};
  Cross slow;
  torch::nn::Linear between{kWidth, kWidth}, after{kWidth, kWidth};
  Cross cross;

  FrozenModules() { start->bias.set_requires_grad(false); }
};

Chain frozen_chain() {
  FrozenModules made;
  Chain chain;
  chain.add(model::module_layer("encode 0", made.encode_0),
            {.reads = {"features"}, .writes = {"e"}, .is_frozen = true});
  chain.add(model::module_layer("encode 1", made.encode_1),
            {.reads = {"e"}, .writes = {"encoded"}, .is_frozen = true});
  chain.add(model::module_layer("start", made.start), {.reads = {"encoded"}});
  chain.add(model::module_layer("slow", made.slow), {.reads = {"x", "encoded"}, .lr_scale = 0.5});
  chain.add(model::module_layer("between", made.between), {.is_frozen = true});
  chain.add(model::module_layer("after", made.after));
  chain.add(model::module_layer("cross", made.cross), {.reads = {"x", "encoded"}});
  return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
}

config::Recipe recipe_for(const std::string& name, int64_t steps = 3) {
  config::Recipe recipe;
  recipe.train = {.steps = steps, .batch = 16, .lr = 1e-2};
  recipe.train.schedule = "constant";
  recipe.run.threads = 1;  // a convolution of LibTorch's depends on how many there are
  recipe.plan.micro_batches = 4;
  recipe.data.split = 0;
  recipe.run.out = fresh_folder(name).string();
  recipe.run.validate_every = 0;
  return recipe;
}

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Trains, and returns the bytes of the weights, and of the layers' state where there is any.
struct Result {
  Summary summary;
  std::string weights, state;
};
Result train(Chain (*make)(),
             const data::DatasetPtr& dataset,
             const config::Recipe& recipe,
             const fs::path& resume = {}) {
  Trainer trainer(make, dataset, recipe);
  Result result{.summary = trainer.run(resume)};
  result.weights = bytes_of(result.summary.checkpoint / "model.safetensors");
  result.state = bytes_of(result.summary.checkpoint / "layers.safetensors");
  return result;
}

void expect_predicted(const Summary& summary, const std::string& what) {
  ASSERT_FALSE(summary.predicted_rank_peak_bytes.empty()) << what;
  EXPECT_EQ(summary.rank_payload_bytes, summary.predicted_rank_payload_bytes) << what;
}

// The least limit under which the chain trains: its plan names it where a limit is too small.
int64_t least_bytes(Chain (*make)(), const data::DatasetPtr& dataset, config::Recipe recipe) {
  recipe.plan.memory = "1KiB";
  return Trainer(make, dataset, recipe).plan().most_least_bytes();
}

// Where a backward is split, graphs of neighbours hold on to the tensor between them until both weight
// gradients are there: it is counted in each, and so predicted peaks are a little high.
void expect_peaks(const std::vector<int64_t>& measured,
                  const std::vector<int64_t>& predicted,
                  const std::string& schedule,
                  const std::string& what) {
  ASSERT_EQ(measured.size(), predicted.size()) << what;
  for (size_t rank = 0; rank < measured.size(); ++rank) {
    if (schedule.starts_with("zb")) {
      EXPECT_LE(measured[rank], predicted[rank]) << what;
      EXPECT_GT(measured[rank], predicted[rank] * 4 / 5) << what;
    } else {
      EXPECT_EQ(measured[rank], predicted[rank]) << what;
    }
  }
}

class OwnChains : public testing::TestWithParam<Chain (*)()> {};

TEST_P(OwnChains, HaveTheBitsOfOneDeviceInEveryPlan) {
  const data::DatasetPtr dataset = sequences();
  const Result plain = train(GetParam(), dataset, recipe_for("plain"));
  EXPECT_LT(plain.summary.losses.back(), plain.summary.losses.front());
  const auto expect_same = [&](const config::Recipe& recipe, const std::string& what) {
    const Result other = train(GetParam(), dataset, recipe);
    EXPECT_EQ(other.summary.losses, plain.summary.losses) << what;
    EXPECT_TRUE(other.weights == plain.weights) << what;
    expect_predicted(other.summary, what);
  };
  // Recomputation, from everything kept down to the least.
  const int64_t least = least_bytes(GetParam(), dataset, recipe_for("least"));
  const int64_t most = plain.summary.predicted_rank_peak_bytes.at(0);
  EXPECT_EQ(plain.summary.rank_peak_bytes, plain.summary.predicted_rank_peak_bytes);
  ASSERT_LT(least, most);
  for (int i = 0; i < 5; ++i) {
    config::Recipe recipe = recipe_for("limited");
    recipe.plan.memory = cat(least + (most - least) * i / 4);
    const Result limited = train(GetParam(), dataset, recipe);
    EXPECT_TRUE(limited.weights == plain.weights) << recipe.plan.memory;
    EXPECT_EQ(limited.summary.rank_peak_bytes, limited.summary.predicted_rank_peak_bytes)
        << recipe.plan.memory;
    EXPECT_LE(limited.summary.peak_bytes, least + (most - least) * i / 4);
  }
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"}) {
    for (const int64_t ranks : {2, 4}) {
      const int64_t stages = std::string(schedule) == "interleaved" ? 2 : 1;
      if (ranks * stages > 6 || (ranks == 4 && std::string(schedule) == "zb-v")) {
        continue;  // more stages than layers
      }
      config::Recipe recipe = recipe_for("ranks");
      recipe.plan.pipeline = ranks;
      recipe.plan.schedule = schedule;
      expect_same(recipe, cat(schedule, " on ", ranks));
    }
  }
}

TEST_P(OwnChains, MeasureThePeaksThatWerePredictedOnEveryRank) {
  const data::DatasetPtr dataset = sequences();
  for (const char* schedule : {"gpipe", "1f1b", "interleaved"}) {
    for (const int64_t ranks : {2, 3, 4}) {
      if (ranks == 4 && std::string(schedule) == "interleaved") {
        continue;  // more stages than layers
      }
      config::Recipe recipe = recipe_for("peaks");
      recipe.plan.pipeline = ranks;
      recipe.plan.schedule = schedule;
      const Summary summary = train(GetParam(), dataset, recipe).summary;
      EXPECT_EQ(summary.rank_peak_bytes, summary.predicted_rank_peak_bytes)
          << schedule << " on " << ranks;
    }
  }
}

TEST_P(OwnChains, PassTheCheckUnderALimit) {
  config::Recipe recipe = recipe_for("check");
  recipe.plan.memory = cat(least_bytes(GetParam(), sequences(), recipe));
  const CheckOutcome one = Trainer(GetParam(), sequences(), recipe).check();
  EXPECT_TRUE(one.is_equal()) << one.report.first_difference;
}

TEST_P(OwnChains, PassTheCheckOnRanks) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    config::Recipe recipe = recipe_for("check");
    recipe.plan.pipeline = 2;
    recipe.plan.schedule = schedule;
    const CheckOutcome two = Trainer(GetParam(), sequences(), recipe).check();
    EXPECT_TRUE(two.is_equal()) << schedule << ": " << two.report.first_difference;
    expect_peaks(two.report.rank_peak_bytes, two.predicted_peaks, schedule, schedule);
  }
}

// One device that adds gradients in the order of the replicas has the same bits.
TEST_P(OwnChains, PassTheCheckAsReplicasWithAnythingSharded) {
  for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
    for (const auto& [pipeline, schedule] :
         {std::pair(1, "1f1b"), {2, "1f1b"}, {2, "zb-h1"}, {2, "interleaved"}}) {
      config::Recipe recipe = recipe_for("replicas");
      recipe.plan.data = 2;
      recipe.plan.shard = shard;
      recipe.plan.pipeline = pipeline;
      recipe.plan.schedule = schedule;
      recipe.plan.micro_batches = 2;
      const std::string what = cat(shard, ", ", schedule, " on 2 x ", pipeline);
      const CheckOutcome outcome = Trainer(GetParam(), sequences(), recipe).check();
      EXPECT_TRUE(outcome.is_equal()) << what << ": " << outcome.report.first_difference;
      EXPECT_EQ(outcome.report.reordered, "") << what;
      expect_peaks(outcome.report.rank_peak_bytes, outcome.predicted_peaks, schedule, what);
    }
  }
}

TEST_P(OwnChains, FitIntoAnyLimitWithShardedParameters) {
  config::Recipe recipe = recipe_for("sharded_limits");
  recipe.plan.data = 2;
  recipe.plan.shard = "parameters";
  recipe.plan.micro_batches = 2;
  const Result plain = train(GetParam(), sequences(), recipe);
  const int64_t least = least_bytes(GetParam(), sequences(), recipe);
  const int64_t most = plain.summary.predicted_rank_peak_bytes.at(0);
  ASSERT_LT(least, most);
  for (int i = 0; i < 5; ++i) {
    recipe.plan.memory = cat(least + (most - least) * i / 4);
    const Result limited = train(GetParam(), sequences(), recipe);
    EXPECT_TRUE(limited.weights == plain.weights) << recipe.plan.memory;
    EXPECT_EQ(limited.summary.rank_peak_bytes, limited.summary.predicted_rank_peak_bytes)
        << recipe.plan.memory;
  }
}

TEST_P(OwnChains, GoOnInAnotherLayout) {
  const Result whole = train(GetParam(), sequences(), recipe_for("whole", 6));
  config::Recipe recipe = recipe_for("parts");
  recipe.plan.pipeline = 2;
  train(GetParam(), sequences(), recipe);
  recipe.plan.pipeline = 1;
  recipe.train.steps = 6;
  const Result resumed = train(GetParam(), sequences(), recipe, recipe.run.out);
  EXPECT_EQ(resumed.summary.first_step, 3);
  EXPECT_TRUE(resumed.weights == whole.weights);
}

std::string chain_name(const testing::TestParamInfo<Chain (*)()>& info) {
  return std::array{"mask", "encoder", "frozen"}[info.index];
}

INSTANTIATE_TEST_SUITE_P(Trainer,
                         OwnChains,
                         testing::Values(&masked_chain, &encoder_chain, &frozen_chain),
                         chain_name);

// --- frozen layers, and learning rates of layers ---

at::Tensor tensor_in(const fs::path& file, const std::string& name, const at::Tensor& like) {
  const checkpoint::SafetensorsFile stored(file);
  const checkpoint::TensorEntry* entry = stored.find(name);
  if (entry == nullptr) {
    return {};
  }
  const at::Tensor tensor = at::empty(like.sizes());
  stored.read(*entry, 0, {static_cast<std::byte*>(tensor.data_ptr()), size_t{tensor.nbytes()}});
  return tensor;
}

config::Recipe sgd_recipe(const std::string& name, int64_t steps) {
  config::Recipe recipe = recipe_for(name, steps);
  recipe.train.optimizer = "sgd";
  recipe.train.momentum = 0;
  recipe.train.weight_decay = 0;
  recipe.train.clip = 0;
  recipe.train.lr = 0.0625;  // a power of two: products with it are exact, fused or not
  return recipe;
}

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

// --- batch norm and dropout ---

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

// --- what a user may get wrong ---

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

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

TEST(OwnChain, TrainsWithABatchOfMoreSamplesThanThereAre) {
  config::Recipe recipe = recipe_for("epochs");
  recipe.train.batch = 96;  // of 64
  const Result result = train(&masked_chain, sequences(), recipe);
  EXPECT_EQ(result.summary.losses.size(), 3u);
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
