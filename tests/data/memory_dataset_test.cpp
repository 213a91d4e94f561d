#include "penstock/data/memory_dataset.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "data/corpus.h"
#include "data/field_values.h"

namespace penstock::data {
namespace {

using test::expect_config_error;
using test::read_values;

MemoryDataset pairs() {
  MemoryDataset dataset;
  dataset.add<float>("features", {2}, {0, 1, 2, 3, 4, 5});
  dataset.add<int64_t>("label", {}, {7, 8, 9});
  return dataset;
}

TEST(MemoryDataset, GivesItsArraysSampleBySample) {
  const MemoryDataset dataset = pairs();
  EXPECT_EQ(dataset.samples(), 3);
  EXPECT_EQ(
      dataset.fields(),
      (std::vector<Field>{{"features", FieldType::Float32, {2}}, {"label", FieldType::Int64, {}}}));
  EXPECT_EQ(read_values<float>(dataset, 0, "features"), (std::vector<float>{0, 1}));
  EXPECT_EQ(read_values<float>(dataset, 2, "features"), (std::vector<float>{4, 5}));
  EXPECT_EQ(read_values<int64_t>(dataset, 2, "label"), (std::vector<int64_t>{9}));
  EXPECT_EQ(dataset.size_text(), "3 samples");
  std::vector<std::byte> label(8);
  EXPECT_EQ(dataset.read(2, 1, label), 0) << "no file is read";
}

TEST(MemoryDataset, TakesEveryType) {
  MemoryDataset dataset;
  dataset.add<int32_t>("int32", {}, {1, -2});
  dataset.add<uint8_t>("uint8", {}, {3, 255});
  dataset.add<bool>("bool", {2}, {true, false, false, true});
  dataset.add("raw", FieldType::Float32, {1}, std::vector<std::byte>(8));
  EXPECT_EQ(dataset.fields(),
            (std::vector<Field>{{"int32", FieldType::Int32, {}},
                                {"uint8", FieldType::UInt8, {}},
                                {"bool", FieldType::Bool, {2}},
                                {"raw", FieldType::Float32, {1}}}));
  EXPECT_EQ(read_values<int32_t>(dataset, 1, "int32"), (std::vector<int32_t>{-2}));
  EXPECT_EQ(read_values<uint8_t>(dataset, 1, "uint8"), (std::vector<uint8_t>{255}));
  EXPECT_EQ(read_values<uint8_t>(dataset, 1, "bool"), (std::vector<uint8_t>{0, 1}));
  EXPECT_EQ(read_values<float>(dataset, 1, "raw"), (std::vector<float>{0}));
}

TEST(MemoryDataset, FingerprintTellsDataApart) {
  const std::string print = pairs().fingerprint();
  EXPECT_EQ(print.find("3 samples, checksum "), 0u) << print;
  EXPECT_EQ(print, pairs().fingerprint());
  const auto other = [](const char* name, std::vector<int64_t> shape, std::vector<int64_t> values) {
    MemoryDataset dataset;
    dataset.add<float>("features", {2}, {0, 1, 2, 3, 4, 5});
    dataset.add(name, std::move(shape), values);
    return dataset.fingerprint();
  };
  EXPECT_EQ(print, other("label", {}, {7, 8, 9}));
  EXPECT_NE(print, other("label", {}, {7, 8, 10}));
  EXPECT_NE(print, other("target", {}, {7, 8, 9}));
  EXPECT_NE(print, other("label", {1}, {7, 8, 9}));
}

TEST(MemoryDataset, OtherNumberOfSamplesIsRefused) {
  MemoryDataset dataset = pairs();
  expect_config_error(
      [&] {
        dataset.add<float>("weight", {}, {1, 2, 3, 4});
      },
      {"field \"weight\" of the data has 4 samples but \"features\" has 3; give "
       "all fields the same number"});
  EXPECT_EQ(dataset.fields().size(), 2) << "a refused field leaves no trace";
  EXPECT_EQ(dataset.fingerprint(), pairs().fingerprint());
}

TEST(MemoryDataset, PartOfASampleIsRefused) {
  MemoryDataset dataset;
  expect_config_error(
      [&] {
        dataset.add<float>("features", {2}, {1, 2, 3});
      },
      {"field \"features\" of the data has 12 bytes, which is not a multiple of 8, "
       "those of one sample of Float32 [2]"});
}

TEST(MemoryDataset, NoSamplesAreRefused) {
  MemoryDataset dataset;
  expect_config_error([&] { dataset.add<float>("features", {2}, {}); },
                      {"field \"features\" of the data has no samples"});
}

TEST(MemoryDataset, NameOrShapeThatIsNoGoodIsRefused) {
  MemoryDataset dataset = pairs();
  expect_config_error(
      [&] {
        dataset.add<float>("label", {}, {1, 2, 3});
      },
      {"the data has two fields \"label\""});
  expect_config_error(
      [&] {
        dataset.add<float>("mask", {0}, {1, 2, 3});
      },
      {"field \"mask\" of the data is Float32 [0]"});
}

TEST(MemoryDataset, WrongReadIsOurBug) {
  const MemoryDataset dataset = pairs();
  std::vector<std::byte> eight(8), nine(9);
  EXPECT_THROW(dataset.read(3, 0, eight), InternalError);
  EXPECT_THROW(dataset.read(0, 2, eight), InternalError);
  EXPECT_THROW(dataset.read(0, 0, nine), InternalError);
}

TEST(FunctionDataset, GivesWhatItsFunctionMakes) {
  const FunctionDataset dataset(
      10,
      {{"square", FieldType::Int64, {}}},
      [](int64_t sample, size_t, std::span<std::byte> into) {
        const int64_t square = sample * sample;
        std::memcpy(into.data(), &square, sizeof square);
      },
      "squares");
  EXPECT_EQ(dataset.samples(), 10);
  EXPECT_EQ(dataset.fingerprint(), "squares");
  EXPECT_EQ(read_values<int64_t>(dataset, 7, "square"), (std::vector<int64_t>{49}));
  std::vector<std::byte> eight(8), nine(9);
  EXPECT_THROW(dataset.read(10, 0, eight), InternalError);
  EXPECT_THROW(dataset.read(0, 1, eight), InternalError);
  EXPECT_THROW(dataset.read(0, 0, nine), InternalError);
}

TEST(FunctionDataset, FieldsThatAreNoGoodAreRefused) {
  const auto nothing = [](int64_t, size_t, std::span<std::byte>) {};
  expect_config_error([&] { FunctionDataset(10, {}, nothing, "x"); }, {"the data has no fields"});
  EXPECT_THROW(FunctionDataset(10, {{"a"}}, nullptr, "x"), InternalError);
}

}  // namespace
}  // namespace penstock::data
