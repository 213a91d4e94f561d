#include "penstock/data/token_dataset.h"

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "data/corpus.h"
#include "data/field_values.h"

namespace penstock::data {
namespace {

using test::counting_store;
using test::expect_config_error;
using test::read_values;
using test::TempFolder;
using Tokens = std::vector<int64_t>;

struct Sample {
  Tokens inputs, targets;
};

Sample read(const Dataset& dataset, int64_t k) {
  return {read_values<int64_t>(dataset, k, "inputs"), read_values<int64_t>(dataset, k, "targets")};
}

TEST(TokenDataset, TargetsAreTheInputsShiftedByOne) {
  const TokenDataset dataset(counting_store(20), 5, 18, 4);
  ASSERT_EQ(dataset.samples(), 3);
  EXPECT_EQ(dataset.tokens(), 13);
  EXPECT_EQ(read(dataset, 0).inputs, (Tokens{5, 6, 7, 8}));
  EXPECT_EQ(read(dataset, 0).targets, (Tokens{6, 7, 8, 9}));
  EXPECT_EQ(read(dataset, 2).inputs, (Tokens{13, 14, 15, 16}));
  EXPECT_EQ(read(dataset, 2).targets, (Tokens{14, 15, 16, 17}));
}

TEST(TokenDataset, FingerprintTellsDataApart) {
  const std::string print = TokenDataset(counting_store(20), 0, 20, 4).fingerprint();
  EXPECT_EQ(print, TokenDataset(counting_store(25), 0, 20, 4).fingerprint());
  EXPECT_NE(print, TokenDataset(counting_store(20), 0, 19, 4).fingerprint());
  EXPECT_NE(print, TokenDataset(counting_store(25), 1, 21, 4).fingerprint());
  EXPECT_EQ(print.find("20 tokens"), 0u) << print;
}

TEST(TokenDataset, LastTokenServesAsTargetOnly) {
  const auto store = counting_store(100);
  EXPECT_EQ(TokenDataset(store, 0, 5, 4).samples(), 1);
  EXPECT_EQ(TokenDataset(store, 0, 8, 4).samples(), 1);
  EXPECT_EQ(TokenDataset(store, 0, 9, 4).samples(), 2);
  EXPECT_EQ(TokenDataset(store, 0, 100, 1).samples(), 99);
}

TEST(TokenDataset, ContextOfOneReadsPairs) {
  const TokenDataset dataset(counting_store(3), 0, 3, 1);
  EXPECT_EQ(read(dataset, 1).inputs, (Tokens{1}));
  EXPECT_EQ(read(dataset, 1).targets, (Tokens{2}));
}

TEST(TokenDataset, FingerprintIsThatOfEarlierBuilds) {
  // A run of an earlier build resumes only when it is.
  EXPECT_EQ(TokenDataset(counting_store(20), 0, 20, 4).fingerprint(),
            "20 tokens, checksum 5d1e63ab");
}

TEST(TokenDataset, FieldsAreInputsAndTargets) {
  const TokenDataset dataset(counting_store(20), 0, 20, 4);
  EXPECT_EQ(
      dataset.fields(),
      (std::vector<Field>{{"inputs", FieldType::Int64, {4}}, {"targets", FieldType::Int64, {4}}}));
  EXPECT_EQ(dataset.context(), 4);
}

TEST(TokenDataset, SizeIsInTokens) {
  EXPECT_EQ(TokenDataset(counting_store(5000), 0, 4321, 4).size_text(), "4,321 tokens");
}

TEST(TokenDataset, LongContextsReadAsShortOnes) {
  // Longer than what is read at once, and no multiple of it.
  const int64_t context = 1300;
  const TokenDataset dataset(counting_store(4000), 7, 4000, context);
  for (int64_t k = 0; k < dataset.samples(); ++k) {
    const Sample sample = read(dataset, k);
    for (int64_t i = 0; i < context; ++i) {
      ASSERT_EQ(sample.inputs[static_cast<size_t>(i)], 7 + k * context + i);
      ASSERT_EQ(sample.targets[static_cast<size_t>(i)], 8 + k * context + i);
    }
  }
}

TEST(TokenDataset, ReadsIntoMemoryOfAnyAlignment) {
  const TokenDataset dataset(counting_store(20), 0, 20, 4);
  std::vector<std::byte> bytes(33);
  const std::span<std::byte> odd = std::span(bytes).subspan(1);
  dataset.read(1, 0, odd);
  EXPECT_EQ(test::values_in<int64_t>(odd), (Tokens{4, 5, 6, 7}));
}

TEST(TokenDataset, SaysHowManyBytesOfFilesAFieldTakes) {
  // Ids of 32 bits.
  const TokenDataset wide(counting_store(2000), 0, 2000, 600);
  std::vector<std::byte> bytes(600 * 8);
  EXPECT_EQ(wide.read(0, 0, bytes), 600 * 4);
  EXPECT_EQ(wide.read(2, 1, bytes), 600 * 4);

  // Bytes.
  const TempFolder folder;
  const std::string path = test::write_file(folder.path() / "a.txt", std::string(100, 'x'));
  const Split text = split_tokens(std::make_shared<const TokenStore>(TokenStore::open(
                                      {.path = path, .tokenizer = "bytes", .vocabulary = 256})),
                                  10,
                                  0.5);
  EXPECT_EQ(text.train->read(0, 0, std::span(bytes).first(80)), 10);
}

// So that all ranks together read a file once before they begin.
TEST(TokenDataset, PartsOfTheCheckAreTheWhole) {
  const TempFolder folder;
  std::vector<uint16_t> tokens(1000, 7);
  tokens[620] = 99;
  const std::string path = test::write_file(folder.path() / "a.bin", test::packed(tokens));
  const auto open = [&](int64_t vocabulary) {
    return split_tokens(std::make_shared<const TokenStore>(TokenStore::open(
                            {.path = path, .tokenizer = "tokens", .vocabulary = vocabulary})),
                        10,
                        0.1);
  };
  const Split sound = open(100), wrong = open(50);
  int64_t bytes = 0;
  for (int64_t part = 0; part < 7; ++part) {
    const auto check = [&](const Split& split) {
      return split.train->check(part, 7) + split.validation->check(part, 7);
    };
    const int64_t one = check(sound);
    EXPECT_NEAR(one, 2000 / 7, 4);
    bytes += one;
    if (part == 4) {  // tokens 514 to 642 of the 900 to train on
      expect_config_error([&] { check(wrong); }, {path, "token 99 at position 620"});
    } else {
      EXPECT_EQ(check(wrong), one);
    }
  }
  EXPECT_EQ(bytes, 2000);
}

TEST(TokenDataset, CountsFilesOfDifferentWidthsEachByItsOwn) {
  const TempFolder folder;
  test::write_file(folder.path() / "a.bin", test::packed(std::vector<uint16_t>{1, 2, 3}));
  std::vector<int32_t> header(256);
  header[0] = 20240801;
  header[1] = 7;
  header[2] = 2;
  test::write_file(folder.path() / "b.bin",
                   test::packed(header) + test::packed(std::vector<uint32_t>{4, 5}));
  const auto store = std::make_shared<const TokenStore>(
      TokenStore::open({.path = folder.path().string(), .tokenizer = "tokens", .vocabulary = 100}));
  const TokenDataset dataset(store, 0, 5, 4);
  EXPECT_EQ(read_values<int64_t>(dataset, 0, "targets"), (Tokens{2, 3, 4, 5}));
  std::vector<std::byte> bytes(4 * 8);
  EXPECT_EQ(dataset.read(0, 1, bytes), 2 * 2 + 2 * 4);
}

TEST(TokenDataset, ThreadsReadTogether) {
  const TokenDataset dataset(counting_store(1001), 0, 1001, 10);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int64_t k = 0; k < dataset.samples(); ++k) {
        EXPECT_EQ(read(dataset, k).inputs.front(), k * 10);
      }
    });
  }
}

TEST(TokenDataset, WrongUseIsOurBug) {
  const auto store = counting_store(10);
  EXPECT_THROW(TokenDataset(store, 0, 10, 0), InternalError);
  EXPECT_THROW(TokenDataset(store, 0, 10, 10), InternalError);
  EXPECT_THROW(TokenDataset(store, -1, 10, 2), InternalError);
  EXPECT_THROW(TokenDataset(store, 0, 11, 2), InternalError);
  const TokenDataset dataset(store, 0, 10, 4);
  EXPECT_THROW(read(dataset, 2), InternalError);
  EXPECT_THROW(read(dataset, -1), InternalError);
  std::vector<std::byte> right(32), wrong(24);
  EXPECT_THROW(dataset.read(0, 0, wrong), InternalError);
  EXPECT_THROW(dataset.read(0, 1, wrong), InternalError);
  EXPECT_THROW(dataset.read(0, 2, right), InternalError);
  EXPECT_THROW(split_tokens(store, 0, 0.1), InternalError);
  EXPECT_THROW(split_tokens(store, 2, 1.0), InternalError);
  EXPECT_THROW(split_tokens(store, 2, -0.1), InternalError);
}

TEST(Split, LastShareOfTheTokensIsHeldOut) {
  const Split split = split_tokens(counting_store(1000), 10, 0.1);
  EXPECT_EQ(split.train->size_text(), "900 tokens");
  EXPECT_EQ(split.train->samples(), 89);
  ASSERT_NE(split.validation, nullptr);
  EXPECT_EQ(split.validation->size_text(), "100 tokens");
  EXPECT_EQ(split.validation->samples(), 9);
  EXPECT_EQ(read(*split.validation, 0).inputs.front(), 900);
}

TEST(Split, TrainingDoesNotSeeAHeldOutToken) {
  for (const int64_t tokens : {100, 101, 105, 109}) {
    const Split split = split_tokens(counting_store(tokens), 5, 0.3);
    const Sample last = read(*split.train, split.train->samples() - 1);
    EXPECT_LT(last.targets.back(), read(*split.validation, 0).inputs.front());
  }
}

TEST(Split, NothingHeldOutMeansNoValidation) {
  const Split split = split_tokens(counting_store(11), 10, 0);
  EXPECT_EQ(split.train->samples(), 1);
  EXPECT_EQ(split.validation, nullptr);
}

TEST(Split, ShortCorpusIsRefused) {
  expect_config_error(
      [] { split_tokens(counting_store(700), 1024, 0); },
      {"model.context = 1024 is longer than the training part of the corpus (700 tokens",
       "takes 1025",
       "shorten model.context or give more text in data.path"});
  expect_config_error([] { split_tokens(counting_store(10), 10, 0); },
                      {"model.context = 10 is as long as the training part", "(10 tokens"});
}

TEST(Split, ShareThatLeavesTooLittleToTrainOnIsRefused) {
  expect_config_error([] { split_tokens(counting_store(100), 20, 0.9); },
                      {"model.context = 20 is longer than the training part", "(10 tokens"});
}

TEST(Split, ShareTooSmallForOneSampleIsRefused) {
  expect_config_error([] { split_tokens(counting_store(1000), 20, 0.02); },
                      {"data.split = 0.02", "20 of 1000 tokens", "model.context = 20"});
  expect_config_error([] { split_tokens(counting_store(1000), 20, 1e-9); },
                      {"data.split = 1e-09", "0 of 1000 tokens"});
}

}  // namespace
}  // namespace penstock::data
