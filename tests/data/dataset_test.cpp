#include "penstock/data/dataset.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/data/batch.h"

#include "data/corpus.h"

namespace penstock::data {
namespace {

using test::counting_store;
using test::expect_config_error;
using Tokens = std::vector<int64_t>;

struct Sample {
  Tokens inputs, targets;
};

Sample read(const Dataset& dataset, int64_t k) {
  const size_t context = static_cast<size_t>(dataset.context());
  Sample sample{Tokens(context), Tokens(context)};
  dataset.read_sample(k, sample.inputs, sample.targets);
  return sample;
}

TEST(Dataset, TargetsAreTheInputsShiftedByOne) {
  const Dataset dataset(counting_store(20), 5, 18, 4);
  ASSERT_EQ(dataset.samples(), 3);
  EXPECT_EQ(dataset.tokens(), 13);
  EXPECT_EQ(read(dataset, 0).inputs, (Tokens{5, 6, 7, 8}));
  EXPECT_EQ(read(dataset, 0).targets, (Tokens{6, 7, 8, 9}));
  EXPECT_EQ(read(dataset, 2).inputs, (Tokens{13, 14, 15, 16}));
  EXPECT_EQ(read(dataset, 2).targets, (Tokens{14, 15, 16, 17}));
}

TEST(Dataset, FingerprintTellsDataApart) {
  const std::string print = Dataset(counting_store(20), 0, 20, 4).fingerprint();
  EXPECT_EQ(print, Dataset(counting_store(25), 0, 20, 4).fingerprint());
  EXPECT_NE(print, Dataset(counting_store(20), 0, 19, 4).fingerprint());
  EXPECT_NE(print, Dataset(counting_store(25), 1, 21, 4).fingerprint());
  EXPECT_EQ(print.find("20 tokens"), 0u) << print;
}

TEST(Dataset, LastTokenServesAsTargetOnly) {
  const auto store = counting_store(100);
  EXPECT_EQ(Dataset(store, 0, 5, 4).samples(), 1);
  EXPECT_EQ(Dataset(store, 0, 8, 4).samples(), 1);
  EXPECT_EQ(Dataset(store, 0, 9, 4).samples(), 2);
  EXPECT_EQ(Dataset(store, 0, 100, 1).samples(), 99);
}

TEST(Dataset, ContextOfOneReadsPairs) {
  const Dataset dataset(counting_store(3), 0, 3, 1);
  EXPECT_EQ(read(dataset, 1).inputs, (Tokens{1}));
  EXPECT_EQ(read(dataset, 1).targets, (Tokens{2}));
}

TEST(Dataset, WrongUseIsOurBug) {
  const auto store = counting_store(10);
  EXPECT_THROW(Dataset(store, 0, 10, 0), InternalError);
  EXPECT_THROW(Dataset(store, 0, 10, 10), InternalError);
  EXPECT_THROW(Dataset(store, -1, 10, 2), InternalError);
  EXPECT_THROW(Dataset(store, 0, 11, 2), InternalError);
  const Dataset dataset(store, 0, 10, 4);
  EXPECT_THROW(read(dataset, 2), InternalError);
  EXPECT_THROW(read(dataset, -1), InternalError);
  Tokens four(4), three(3);
  EXPECT_THROW(dataset.read_sample(0, three, four), InternalError);
  EXPECT_THROW(dataset.read_sample(0, four, three), InternalError);
  EXPECT_THROW(split_dataset(store, 0, 0.1), InternalError);
  EXPECT_THROW(split_dataset(store, 2, 1.0), InternalError);
  EXPECT_THROW(split_dataset(store, 2, -0.1), InternalError);
}

TEST(Split, LastShareOfTheTokensIsHeldOut) {
  const Split split = split_dataset(counting_store(1000), 10, 0.1);
  EXPECT_EQ(split.train.tokens(), 900);
  EXPECT_EQ(split.train.samples(), 89);
  ASSERT_TRUE(split.validation.has_value());
  EXPECT_EQ(split.validation->tokens(), 100);
  EXPECT_EQ(split.validation->samples(), 9);
  EXPECT_EQ(read(*split.validation, 0).inputs.front(), 900);
}

TEST(Split, TrainingDoesNotSeeAHeldOutToken) {
  for (const int64_t tokens : {100, 101, 105, 109}) {
    const Split split = split_dataset(counting_store(tokens), 5, 0.3);
    const Sample last = read(split.train, split.train.samples() - 1);
    EXPECT_LT(last.targets.back(), read(*split.validation, 0).inputs.front());
  }
}

TEST(Split, NothingHeldOutMeansNoValidation) {
  const Split split = split_dataset(counting_store(11), 10, 0);
  EXPECT_EQ(split.train.samples(), 1);
  EXPECT_FALSE(split.validation.has_value());
}

TEST(Split, ShortCorpusIsRefused) {
  expect_config_error(
      [] { split_dataset(counting_store(700), 1024, 0); },
      {"model.context = 1024 is longer than the training part of the corpus (700 tokens",
       "takes 1025",
       "shorten model.context or give more text in data.path"});
  expect_config_error([] { split_dataset(counting_store(10), 10, 0); },
                      {"model.context = 10 is as long as the training part", "(10 tokens"});
}

TEST(Split, ShareThatLeavesTooLittleToTrainOnIsRefused) {
  expect_config_error([] { split_dataset(counting_store(100), 20, 0.9); },
                      {"model.context = 20 is longer than the training part", "(10 tokens"});
}

TEST(Split, ShareTooSmallForOneSampleIsRefused) {
  expect_config_error([] { split_dataset(counting_store(1000), 20, 0.02); },
                      {"data.split = 0.02", "20 of 1000 tokens", "model.context = 20"});
  expect_config_error([] { split_dataset(counting_store(1000), 20, 1e-9); },
                      {"data.split = 1e-09", "0 of 1000 tokens"});
}

TEST(ReadInOrder, GivesSamplesAsTheyLie) {
  const Dataset dataset(counting_store(100), 0, 100, 3);
  const Batch batch = read_in_order(dataset, 1, 2);
  EXPECT_EQ(batch.first_sample, 1);
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.context, 3);
  EXPECT_EQ(batch.inputs, (Tokens{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(batch.targets, (Tokens{4, 5, 6, 7, 8, 9}));
}

TEST(ReadInOrder, ReachesTheLastSampleAndNoFurther) {
  const Dataset dataset(counting_store(100), 0, 100, 3);
  EXPECT_EQ(read_in_order(dataset, 0, dataset.samples()).inputs.size(), 99);
  EXPECT_TRUE(read_in_order(dataset, dataset.samples(), 0).inputs.empty());
  EXPECT_THROW(read_in_order(dataset, 1, dataset.samples()), InternalError);
  EXPECT_THROW(read_in_order(dataset, -1, 1), InternalError);
  EXPECT_THROW(read_in_order(dataset, 0, -1), InternalError);
}

}  // namespace
}  // namespace penstock::data
