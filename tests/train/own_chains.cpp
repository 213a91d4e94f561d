#include "train/own_chains.h"

#include <cmath>
#include <fstream>
#include <iterator>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/safetensors.h"
#include "penstock/data/memory_dataset.h"
#include "penstock/model/module_layer.h"

namespace penstock::train {

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

std::unique_ptr<model::Loss> label_loss() {
  return model::function_loss("loss", [](const at::Tensor& x, const at::Tensor& label) {
    return at::cross_entropy_loss(x.sum(1).narrow(1, 0, 3), label, {}, at::Reduction::Sum);
  });
}

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

fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::path(testing::TempDir()) / ("own_chain_" + name);
  fs::remove_all(folder);
  return folder;
}

config::Recipe recipe_for(const std::string& name, int64_t steps) {
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

config::Recipe sgd_recipe(const std::string& name, int64_t steps) {
  config::Recipe recipe = recipe_for(name, steps);
  recipe.train.optimizer = "sgd";
  recipe.train.momentum = 0;
  recipe.train.weight_decay = 0;
  recipe.train.clip = 0;
  recipe.train.lr = 0.0625;  // a power of two: products with it are exact, fused or not
  return recipe;
}

namespace {

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

Result train(const MakeChain& make,
             const data::DatasetPtr& dataset,
             const config::Recipe& recipe,
             const fs::path& resume) {
  Trainer trainer(make, dataset, recipe);
  Result result{.summary = trainer.run(resume)};
  result.weights = bytes_of(result.summary.checkpoint / "model.safetensors");
  result.state = bytes_of(result.summary.checkpoint / "layers.safetensors");
  return result;
}

int64_t least_bytes(const MakeChain& make, const data::DatasetPtr& dataset, config::Recipe recipe) {
  recipe.plan.memory = "1KiB";
  return Trainer(make, dataset, recipe).plan().most_least_bytes();
}

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

at::Tensor tensor_in(const fs::path& file, const std::string& name, const at::Tensor& like) {
  const checkpoint::SafetensorsFile stored(file);
  const checkpoint::TensorEntry* entry = stored.find(name);
  if (entry == nullptr) {
    return {};
  }
  const at::Tensor tensor = at::empty(like.sizes(), like.options());
  stored.read(*entry, 0, {static_cast<std::byte*>(tensor.data_ptr()), size_t{tensor.nbytes()}});
  return tensor;
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace penstock::train
