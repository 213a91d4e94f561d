#include "penstock/data/loader.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "data/corpus.h"
#include "support/temp_folder.h"

namespace penstock::data {
namespace {

using test::counting_store;
using test::expect_config_error;
using test::TempFolder;
using Tokens = std::vector<int64_t>;

Dataset counting_dataset(int64_t samples, int64_t context) {
  const int64_t tokens = samples * context + 1;
  return {counting_store(tokens), 0, tokens, context};
}

void expect_equal(const Batch& a, const Batch& b) {
  EXPECT_EQ(a.first_sample, b.first_sample);
  EXPECT_EQ(a.sequences, b.sequences);
  EXPECT_EQ(a.context, b.context);
  EXPECT_EQ(a.inputs, b.inputs);
  EXPECT_EQ(a.targets, b.targets);
}

TEST(Loader, BatchHoldsTheSamplesOfTheOrder) {
  const int64_t context = 5;
  const Dataset dataset = counting_dataset(23, context);
  const SampleOrder order(23, 9);
  Loader loader(dataset, {.seed = 9, .batch = 4});
  for (int64_t first = 0; first < 100; first += 4) {
    const Batch batch = loader.next();
    EXPECT_EQ(batch.first_sample, first);
    EXPECT_EQ(batch.sequences, 4);
    EXPECT_EQ(batch.context, context);
    ASSERT_EQ(batch.inputs.size(), 20);
    ASSERT_EQ(batch.targets.size(), 20);
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t column = 0; column < context; ++column) {
        const size_t at = static_cast<size_t>(row * context + column);
        EXPECT_EQ(batch.inputs[at], order.at(first + row) * context + column);
        EXPECT_EQ(batch.targets[at], batch.inputs[at] + 1);
      }
    }
  }
}

TEST(Loader, EveryEpochSeesEverySampleOnce) {
  Loader loader(counting_dataset(30, 1), {.seed = 1, .batch = 10});
  for (int epoch = 0; epoch < 3; ++epoch) {
    Tokens seen;
    for (int i = 0; i < 3; ++i) {
      const Batch batch = loader.next();
      seen.insert(seen.end(), batch.inputs.begin(), batch.inputs.end());
    }
    std::sort(seen.begin(), seen.end());
    Tokens expected(30);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(seen, expected);
  }
}

TEST(Loader, BatchMayBeLargerThanTheDataset) {
  Loader loader(counting_dataset(3, 2), {.seed = 1, .batch = 8});
  EXPECT_EQ(loader.next().inputs.size(), 16);
  EXPECT_EQ(loader.next().first_sample, 8);
}

TEST(Loader, ResumedLoaderGivesWhatTheUninterruptedOneWould) {
  const Dataset dataset = counting_dataset(17, 6);
  for (const int64_t taken : {1, 4, 7, 20}) {
    Loader whole(dataset, {.seed = 3, .batch = 5});
    for (int64_t i = 0; i < taken; ++i) {
      whole.next();
    }
    Loader resumed(dataset, {.seed = 3, .batch = 5, .first_sample = taken * 5});
    for (int i = 0; i < 12; ++i) {
      expect_equal(resumed.next(), whole.next());
    }
  }
}

TEST(Loader, BatchesDoNotDependOnHowFarItReadsAhead) {
  const Dataset dataset = counting_dataset(17, 6);
  Loader one(dataset, {.seed = 3, .batch = 2, .ahead = 1});
  Loader many(dataset, {.seed = 3, .batch = 2, .ahead = 50});
  for (int i = 0; i < 60; ++i) {
    expect_equal(one.next(), many.next());
  }
}

TEST(Loader, OutlivesTheDatasetItWasGiven) {
  std::optional<Dataset> dataset = counting_dataset(10, 4);
  Loader loader(*dataset, {.seed = 3, .batch = 2});
  dataset.reset();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(loader.next().inputs.size(), 8);
  }
}

TEST(Loader, StopsWithoutBeingReadToTheEnd) {
  const Dataset dataset = counting_dataset(10, 4);
  for (int taken = 0; taken < 30; ++taken) {
    Loader loader(dataset, {.seed = 3, .batch = 2, .ahead = 1 + taken % 3});
    for (int i = 0; i < taken % 5; ++i) {
      loader.next();
    }
  }
}

TEST(Loader, StopsInTheMiddleOfALongBatch) {
  using Clock = std::chrono::steady_clock;
  const Dataset dataset = counting_dataset(1000, 1);
  // A busy machine may hold up one try, hardly all of them.
  bool was_prompt = false;
  for (int attempt = 0; attempt < 5 && !was_prompt; ++attempt) {
    const auto start = Clock::now();
    auto loader = std::make_unique<Loader>(dataset, LoaderOptions{.seed = 3, .batch = 300000});
    loader->next();
    const auto whole_batch = Clock::now() - start;
    const auto stop = Clock::now();
    loader.reset();
    was_prompt = Clock::now() - stop < whole_batch / 3;
  }
  EXPECT_TRUE(was_prompt);
}

TEST(Loader, ErrorOfTheThreadIsRethrownAfterTheBatchesBeforeIt) {
  // A store too large to be checked when opened, with a bad id in the sample that is drawn third.
  const int64_t context = 1024;
  const int64_t samples = TokenStore::kFullCheckTokens / context;
  const int64_t bad = SampleOrder(samples, 1).at(2) * context + 10;
  const TempFolder folder;
  const std::string path = test::write_file(folder.path() / "a.bin", "");
  std::filesystem::resize_file(path, 2 * static_cast<uintmax_t>(TokenStore::kFullCheckTokens + 1));
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(2 * bad);
  file.write("\xFF\xFF", 2);
  file.close();
  ASSERT_TRUE(file);

  const auto store = std::make_shared<const TokenStore>(
      TokenStore::open({.path = path, .tokenizer = "tokens", .vocabulary = 50257}));
  Loader loader(Dataset(store, 0, store->size(), context), {.seed = 1, .batch = 1});
  EXPECT_EQ(loader.next().first_sample, 0);
  EXPECT_EQ(loader.next().first_sample, 1);
  for (int i = 0; i < 2; ++i) {
    expect_config_error([&] { loader.next(); },
                        {"data.path", path, cat("token 65535 at position ", bad)});
  }
}

TEST(Loader, WrongOptionsAreOurBug) {
  const Dataset dataset = counting_dataset(10, 4);
  EXPECT_THROW(Loader(dataset, {.batch = 0}), InternalError);
  EXPECT_THROW(Loader(dataset, {.first_sample = -1}), InternalError);
  EXPECT_THROW(Loader(dataset, {.ahead = 0}), InternalError);
}

}  // namespace
}  // namespace penstock::data
