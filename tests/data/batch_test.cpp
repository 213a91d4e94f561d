#include "penstock/data/batch.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/data/memory_dataset.h"
#include "penstock/data/token_dataset.h"

#include "data/corpus.h"
#include "data/field_values.h"

namespace penstock::data {
namespace {

using test::counting_store;
using test::expect_config_error;
using test::names_in;
using test::values_of;
using Tokens = std::vector<int64_t>;
using Names = std::vector<std::string>;

TEST(ReadInOrder, GivesSamplesAsTheyLie) {
  const TokenDataset dataset(counting_store(100), 0, 100, 3);
  const Batch batch = read_in_order(dataset, 1, 2);
  EXPECT_EQ(batch.first_sample, 1);
  EXPECT_EQ(batch.samples, 2);
  EXPECT_EQ(batch.first_row, 0);
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(values_of<int64_t>(batch, "inputs"), (Tokens{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(values_of<int64_t>(batch, "targets"), (Tokens{4, 5, 6, 7, 8, 9}));
}

TEST(ReadInOrder, ReachesTheLastSampleAndNoFurther) {
  const TokenDataset dataset(counting_store(100), 0, 100, 3);
  const int64_t all = dataset.samples();
  EXPECT_EQ(values_of<int64_t>(read_in_order(dataset, 0, all), "inputs").size(), 99);
  EXPECT_TRUE(values_of<int64_t>(read_in_order(dataset, all, 0), "inputs").empty());
  EXPECT_THROW(read_in_order(dataset, 1, all), InternalError);
  EXPECT_THROW(read_in_order(dataset, -1, 1), InternalError);
  EXPECT_THROW(read_in_order(dataset, 0, -1), InternalError);
}

TEST(ReadInOrder, ReadsOnlyTheFieldsAskedFor) {
  const TokenDataset dataset(counting_store(100), 0, 100, 3);
  const Batch batch = read_in_order(dataset, 0, 5, {"targets"});
  EXPECT_EQ(names_in(batch), Names{"targets"});
  EXPECT_EQ(batch.find("inputs"), nullptr);
  EXPECT_EQ(batch.read_bytes, 5 * 3 * 4);
}

TEST(ReadInOrder, FieldThatIsNotThereIsRefused) {
  const TokenDataset dataset(counting_store(100), 0, 100, 3);
  expect_config_error([&] { read_in_order(dataset, 0, 1, {"mask"}); },
                      {"the data has no field \"mask\"; it has inputs, targets"});
}

TEST(ReadInOrder, FieldsOfAnyTypeAndShapeLieRowByRow) {
  MemoryDataset dataset;
  dataset.add<float>("features", {2}, {0.5F, 1.5F, 2.5F, 3.5F, 4.5F, 5.5F});
  dataset.add<int64_t>("label", {}, {7, 8, 9});
  const Batch batch = read_in_order(dataset, 1, 2);
  EXPECT_EQ(names_in(batch), (Names{"features", "label"}));
  EXPECT_EQ(values_of<float>(batch, "features"), (std::vector<float>{2.5F, 3.5F, 4.5F, 5.5F}));
  EXPECT_EQ(values_of<int64_t>(batch, "label"), (Tokens{8, 9}));
  EXPECT_EQ(batch.find("label")->field, (Field{"label", FieldType::Int64, {}}));
}

TEST(Append, PutsTheRowsOfOneBatchAfterThoseOfTheOther) {
  const TokenDataset dataset(counting_store(100), 0, 100, 2);
  Batch all;
  append(all, read_in_order(dataset, 3, 2));
  append(all, read_in_order(dataset, 5, 1));
  append(all, read_in_order(dataset, 6, 4));
  const Batch whole = read_in_order(dataset, 3, 7);
  EXPECT_EQ(all.first_sample, 3);
  EXPECT_EQ(all.samples, 7);
  EXPECT_EQ(all.rows, 7);
  for (const std::string name : {"inputs", "targets"}) {
    EXPECT_EQ(values_of<int64_t>(all, name), values_of<int64_t>(whole, name));
  }
}

TEST(Append, KeepsCountOfWholeBatchesWhenOnlyPartsAreHere) {
  const TokenDataset dataset(counting_store(100), 0, 100, 1);
  const auto part = [&](int64_t first_sample) {
    Batch batch = read_in_order(dataset, first_sample + 2, 2);
    batch.first_sample = first_sample;
    batch.samples = 4;
    batch.first_row = 2;
    return batch;
  };
  Batch all = part(0);
  append(all, part(4));
  EXPECT_EQ(all.samples, 8);
  EXPECT_EQ(all.first_row, 2);
  EXPECT_EQ(all.rows, 4);
  EXPECT_EQ(values_of<int64_t>(all, "inputs"), (Tokens{2, 3, 6, 7}));
}

TEST(Append, BatchesThatDoNotFitAreOurBug) {
  const TokenDataset dataset(counting_store(100), 0, 100, 2);
  const TokenDataset longer(counting_store(100), 0, 100, 3);
  Batch all = read_in_order(dataset, 0, 2);
  EXPECT_THROW(append(all, read_in_order(dataset, 3, 1)), InternalError);
  EXPECT_THROW(append(all, read_in_order(dataset, 2, 1, {"inputs"})), InternalError);
  EXPECT_THROW(append(all, read_in_order(dataset, 2, 1, {"targets", "inputs"})), InternalError);
  EXPECT_THROW(append(all, read_in_order(longer, 2, 1)), InternalError);
  EXPECT_EQ(all.rows, 2);
  EXPECT_EQ(values_of<int64_t>(all, "inputs").size(), 4) << "nothing was added";
}

}  // namespace
}  // namespace penstock::data
