// A dataset of a user's own, the one of docs/own_datasets.md, through train::Trainer: what each rank reads
// of its file.
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "penstock/base/text.h"
#include "penstock/model/module_layer.h"
#include "penstock/train/trainer.h"

#include "data/corpus.h"
#include "data/record_dataset.h"
#include "support/temp_folder.h"
#include "train/own_chains.h"

namespace penstock::train {
namespace {

constexpr int64_t kSamples = 80, kSteps = 6, kBatch = 16, kAhead = 4, kHeldOut = 16;

std::shared_ptr<const RecordDataset> records(const test::TempFolder& folder) {
  std::string bytes;
  for (int64_t k = 0; k < kSamples; ++k) {
    std::vector<float> features;
    for (int64_t i = 0; i < 8; ++i) {
      features.push_back(static_cast<float>((k * 31 + i * 17) % 23) / 23.0F);
    }
    bytes += test::packed(features) + test::packed(std::vector<int64_t>{k % 3});
  }
  return std::make_shared<const RecordDataset>(
      test::write_file(folder.path() / "train.records", bytes));
}

Chain classifier() {
  Chain chain;
  chain.add(model::module_layer("first", torch::nn::Linear(8, 16)), {.reads = {"features"}});
  chain.add(model::function_layer("tanh",
                                  [](const Tensors& in) -> Tensors { return {at::tanh(in[0])}; }));
  chain.add(model::module_layer("second", torch::nn::Linear(16, 3)));
  return std::move(chain.end_with(
      model::function_loss("loss",
                           [](const at::Tensor& x, const at::Tensor& label) {
                             return at::cross_entropy_loss(x, label, {}, at::Reduction::Sum);
                           }),
      {.targets = {"label"}}));
}

// Ranks that are threads share the dataset, and each counts what it has read itself.
TEST(OwnDatasetTraining, EachRankReadsItsRowsAndItsField) {
  const test::TempFolder folder;
  const auto dataset = records(folder);
  config::Recipe recipe = recipe_for("records", kSteps);
  recipe.train.batch = kBatch;
  recipe.data.split = static_cast<double>(kHeldOut) / kSamples;
  const auto read = [&](int64_t pipeline, int64_t data) {
    recipe.plan.pipeline = pipeline;
    recipe.plan.data = data;
    recipe.plan.micro_batches = 2;
    return train(&classifier, dataset, recipe).summary;
  };
  const auto expect_rows = [](int64_t bytes, int64_t bytes_each, int64_t replicas) {
    const int64_t rows = bytes / bytes_each;
    EXPECT_EQ(rows * bytes_each, bytes);
    // What is held out is divided, too, and evaluated once.
    EXPECT_GE(rows, (kSteps * kBatch + kHeldOut) / replicas);
    EXPECT_LE(rows, ((kSteps + kAhead) * kBatch + kHeldOut) / replicas);
  };
  const Summary one = read(1, 1);
  ASSERT_EQ(one.rank_read_bytes.size(), 1U);
  expect_rows(one.rank_read_bytes[0], 8 * 4 + 8, 1);
  const Summary four = read(2, 2);
  ASSERT_EQ(four.rank_read_bytes.size(), 4U);
  // The first stage reads the features, the second the labels.
  int64_t features = 0, labels = 0;
  for (const int64_t bytes : four.rank_read_bytes) {
    const bool is_first = bytes >= 32 * kSteps * kBatch / 2;
    (is_first ? features : labels) += 1;
    expect_rows(bytes, is_first ? 32 : 8, 2);
  }
  EXPECT_EQ(features, 2);
  EXPECT_EQ(labels, 2);
  EXPECT_NEAR(*four.validation_loss, *one.validation_loss, 1e-5);
}

}  // namespace
}  // namespace penstock::train
