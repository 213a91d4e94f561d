#include "penstock/data/loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/data/memory_dataset.h"
#include "penstock/data/token_dataset.h"

#include "data/corpus.h"
#include "data/field_values.h"
#include "support/temp_folder.h"

namespace penstock::data {
namespace {

using test::counting_store;
using test::expect_config_error;
using test::names_in;
using test::TempFolder;
using test::values_of;
using Tokens = std::vector<int64_t>;
using Names = std::vector<std::string>;

DatasetPtr counting_dataset(int64_t samples, int64_t context) {
  const int64_t tokens = samples * context + 1;
  return std::make_shared<const TokenDataset>(counting_store(tokens), 0, tokens, context);
}

void expect_equal(const Batch& a, const Batch& b) {
  EXPECT_EQ(a.first_sample, b.first_sample);
  EXPECT_EQ(a.samples, b.samples);
  EXPECT_EQ(a.first_row, b.first_row);
  EXPECT_EQ(a.rows, b.rows);
  ASSERT_EQ(names_in(a), names_in(b));
  for (size_t i = 0; i < a.fields.size(); ++i) {
    EXPECT_EQ(a.fields[i].field, b.fields[i].field);
    EXPECT_EQ(a.fields[i].bytes, b.fields[i].bytes);
  }
}

Tokens inputs_of(const Batch& batch) {
  return values_of<int64_t>(batch, "inputs");
}

// A dataset of three fields that remembers what was read of it. An element is 1000 * field +
// sample.
class Watched {
 public:
  explicit Watched(int64_t samples)
      : dataset_(std::make_shared<const FunctionDataset>(
            samples,
            std::vector<Field>{{"inputs", FieldType::Int64, {2}},
                               {"targets", FieldType::Int64, {}},
                               {"mask", FieldType::UInt8, {3}}},
            [this](int64_t sample, size_t field, std::span<std::byte> into) {
              read(sample, field, into);
            },
            "watched")) {}

  const DatasetPtr& dataset() const { return dataset_; }

  // How often each (sample, field) was read.
  std::map<std::pair<int64_t, size_t>, int> reads() const {
    const std::lock_guard lock(mutex_);
    return reads_;
  }

  int64_t number_of_reads() const {
    int64_t sum = 0;
    for (const auto& [what, times] : reads()) {
      sum += times;
    }
    return sum;
  }

  // Until the loader has read so much, but not for ever.
  void wait_for_reads(int64_t number) const {
    for (int i = 0; i < 2000 && number_of_reads() < number; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

 private:
  void read(int64_t sample, size_t field, std::span<std::byte> into) {
    {
      const std::lock_guard lock(mutex_);
      ++reads_[{sample, field}];
    }
    if (field == 2) {
      std::memset(into.data(), static_cast<int>(sample), into.size());
      return;
    }
    const int64_t value = 1000 * static_cast<int64_t>(field) + sample;
    for (size_t at = 0; at < into.size(); at += sizeof value) {
      std::memcpy(into.data() + at, &value, sizeof value);
    }
  }

  mutable std::mutex mutex_;
  std::map<std::pair<int64_t, size_t>, int> reads_;
  DatasetPtr dataset_;
};

TEST(Loader, BatchHoldsTheSamplesOfTheOrder) {
  const int64_t context = 5;
  const DatasetPtr dataset = counting_dataset(23, context);
  const SampleOrder order(23, 9);
  Loader loader(dataset, {.seed = 9, .batch = 4});
  for (int64_t first = 0; first < 100; first += 4) {
    const Batch batch = loader.next();
    EXPECT_EQ(batch.first_sample, first);
    EXPECT_EQ(batch.samples, 4);
    EXPECT_EQ(batch.first_row, 0);
    EXPECT_EQ(batch.rows, 4);
    const Tokens inputs = values_of<int64_t>(batch, "inputs");
    const Tokens targets = values_of<int64_t>(batch, "targets");
    ASSERT_EQ(inputs.size(), 20);
    ASSERT_EQ(targets.size(), 20);
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t column = 0; column < context; ++column) {
        const size_t at = static_cast<size_t>(row * context + column);
        EXPECT_EQ(inputs[at], order.at(first + row) * context + column);
        EXPECT_EQ(targets[at], inputs[at] + 1);
      }
    }
  }
}

TEST(Loader, EveryEpochSeesEverySampleOnce) {
  Loader loader(counting_dataset(30, 1), {.seed = 1, .batch = 10});
  for (int epoch = 0; epoch < 3; ++epoch) {
    Tokens seen;
    for (int i = 0; i < 3; ++i) {
      const Tokens inputs = inputs_of(loader.next());
      seen.insert(seen.end(), inputs.begin(), inputs.end());
    }
    std::sort(seen.begin(), seen.end());
    Tokens expected(30);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(seen, expected);
  }
}

TEST(Loader, BatchMayBeLargerThanTheDataset) {
  Loader loader(counting_dataset(3, 2), {.seed = 1, .batch = 8});
  EXPECT_EQ(inputs_of(loader.next()).size(), 16);
  EXPECT_EQ(loader.next().first_sample, 8);
}

TEST(Loader, ResumedLoaderGivesWhatTheUninterruptedOneWould) {
  const DatasetPtr dataset = counting_dataset(17, 6);
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
  const DatasetPtr dataset = counting_dataset(17, 6);
  Loader one(dataset, {.seed = 3, .batch = 2, .ahead = 1});
  Loader many(dataset, {.seed = 3, .batch = 2, .ahead = 50});
  for (int i = 0; i < 60; ++i) {
    expect_equal(one.next(), many.next());
  }
}

TEST(Loader, OutlivesTheDatasetItWasGiven) {
  DatasetPtr dataset = counting_dataset(10, 4);
  Loader loader(dataset, {.seed = 3, .batch = 2});
  dataset.reset();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(inputs_of(loader.next()).size(), 8);
  }
}

TEST(Loader, StopsWithoutBeingReadToTheEnd) {
  const DatasetPtr dataset = counting_dataset(10, 4);
  for (int taken = 0; taken < 30; ++taken) {
    Loader loader(dataset, {.seed = 3, .batch = 2, .ahead = 1 + taken % 3});
    for (int i = 0; i < taken % 5; ++i) {
      loader.next();
    }
  }
}

TEST(Loader, StopsInTheMiddleOfALongBatch) {
  using Clock = std::chrono::steady_clock;
  const DatasetPtr dataset = counting_dataset(1000, 1);
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
  Loader loader(std::make_shared<const TokenDataset>(store, 0, store->size(), context),
                {.seed = 1, .batch = 1});
  EXPECT_EQ(loader.next().first_sample, 0);
  EXPECT_EQ(loader.next().first_sample, 1);
  for (int i = 0; i < 2; ++i) {
    expect_config_error([&] { loader.next(); },
                        {"data.path", path, cat("token 65535 at position ", bad)});
  }
}

TEST(Loader, ReadsOnlyItsRowsAndFields) {
  const Watched watched(100);
  const SampleOrder order(100, 5);
  std::map<std::pair<int64_t, size_t>, int> expected;
  {
    Loader loader(watched.dataset(),
                  {.seed = 5,
                   .batch = 8,
                   .first_sample = 16,
                   .ahead = 3,
                   .fields = {"mask", "inputs"},
                   .first_row = 2,
                   .rows = 3});
    const Batch batch = loader.next();
    EXPECT_EQ(batch.first_sample, 16);
    EXPECT_EQ(batch.samples, 8);
    EXPECT_EQ(batch.first_row, 2);
    EXPECT_EQ(batch.rows, 3);
    EXPECT_EQ(names_in(batch), (Names{"mask", "inputs"}));
    const Tokens inputs = inputs_of(batch);
    ASSERT_EQ(inputs.size(), 6);
    for (int64_t row = 0; row < 3; ++row) {
      EXPECT_EQ(inputs[static_cast<size_t>(2 * row)], order.at(16 + 2 + row));
    }
    // One batch is taken, three are kept ready.
    for (int64_t first = 16; first < 16 + 4 * 8; first += 8) {
      for (int64_t row = 2; row < 5; ++row) {
        ++expected[{order.at(first + row), 0}];
        ++expected[{order.at(first + row), 2}];
      }
    }
    watched.wait_for_reads(4 * 3 * 2);
  }
  EXPECT_EQ(watched.reads(), expected);
}

TEST(Loader, KeepsNoMoreThanItSays) {
  const Watched watched(100);
  Loader loader(watched.dataset(), {.seed = 5, .batch = 4, .ahead = 3});
  const int64_t sample_bytes = 16 + 8 + 3;
  EXPECT_EQ(loader.bytes(), 3 * 4 * sample_bytes);
  const auto bytes_made = [&] {
    int64_t bytes = 0;
    for (const auto& [what, times] : watched.reads()) {
      bytes += times * watched.dataset()->fields()[what.second].bytes();
    }
    return bytes;
  };
  int64_t taken = 0;
  for (int i = 0; i < 3; ++i) {
    watched.wait_for_reads((3 + i) * 4 * 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(bytes_made() - taken, loader.bytes());
    for (const BatchField& have : loader.next().fields) {
      taken += static_cast<int64_t>(have.bytes.size());
    }
  }
}

TEST(Loader, BytesAreThoseOfItsRowsAndFields) {
  const Watched watched(100);
  EXPECT_EQ(Loader(watched.dataset(), {.batch = 8, .ahead = 2, .fields = {"targets"}}).bytes(),
            2 * 8 * 8);
  EXPECT_EQ(Loader(watched.dataset(), {.batch = 8, .ahead = 5, .first_row = 6, .rows = 2}).bytes(),
            5 * 2 * 27);
}

TEST(Loader, RowsOfTheReplicasAreTheWholeBatch) {
  const DatasetPtr dataset = counting_dataset(17, 3);
  Loader whole(dataset, {.seed = 2, .batch = 6});
  Loader first(dataset, {.seed = 2, .batch = 6, .rows = 2});
  Loader second(dataset, {.seed = 2, .batch = 6, .first_row = 2});
  for (int i = 0; i < 10; ++i) {
    const Batch all = whole.next(), one = first.next(), two = second.next();
    EXPECT_EQ(one.first_sample, all.first_sample);
    EXPECT_EQ(two.first_sample, all.first_sample);
    EXPECT_EQ(one.rows, 2);
    EXPECT_EQ(two.rows, 4) << "without a number, all that follow the first row";
    for (const std::string name : {"inputs", "targets"}) {
      Tokens joined = values_of<int64_t>(one, name);
      const Tokens rest = values_of<int64_t>(two, name);
      joined.insert(joined.end(), rest.begin(), rest.end());
      EXPECT_EQ(joined, values_of<int64_t>(all, name));
    }
  }
}

TEST(Loader, ReplicaReadsItsShareOfTheFile) {
  // Loaders of two ranks that are threads share a dataset, and each counts for itself.
  const DatasetPtr dataset = counting_dataset(100, 5);
  const LoaderOptions options{.seed = 2, .batch = 8, .ahead = 1, .fields = {"inputs"}, .rows = 4};
  Loader loader(dataset, options), other(dataset, options);
  EXPECT_EQ(loader.next().read_bytes, 4 * 5 * 4);
  loader.next();
  // Others may have been read ahead.
  EXPECT_GE(loader.read_bytes(), 2 * 4 * 5 * 4);
  EXPECT_LE(loader.read_bytes(), 4 * 4 * 5 * 4);
  EXPECT_LE(other.read_bytes(), 2 * 4 * 5 * 4);
}

TEST(Loader, FieldThatIsNotThereIsRefused) {
  expect_config_error(
      [] {
        Loader(counting_dataset(10, 4), {.batch = 2, .fields = {"inputs", "mask"}});
      },
      {"the data has no field \"mask\"; it has inputs, targets"});
}

TEST(Loader, DataWithoutSamplesIsRefused) {
  const auto nothing = [](int64_t, size_t, std::span<std::byte>) {};
  const std::vector<Field> fields = {{"inputs"}};
  expect_config_error(
      [&] { Loader(std::make_shared<const FunctionDataset>(0, fields, nothing, "x"), {}); },
      {"the data has no samples; give it at least one"});
}

TEST(Loader, WrongOptionsAreOurBug) {
  const DatasetPtr dataset = counting_dataset(10, 4);
  EXPECT_THROW(Loader(dataset, {.batch = 0}), InternalError);
  EXPECT_THROW(Loader(dataset, {.first_sample = -1}), InternalError);
  EXPECT_THROW(Loader(dataset, {.ahead = 0}), InternalError);
  EXPECT_THROW(Loader(dataset, {.batch = 4, .rows = 0}), InternalError);
  EXPECT_THROW(Loader(dataset, {.batch = 4, .rows = -2}), InternalError);
  EXPECT_THROW(Loader(dataset, {.batch = 4, .rows = 5}), InternalError);
  EXPECT_THROW(Loader(dataset, {.batch = 4, .first_row = 3, .rows = 2}), InternalError);
  EXPECT_THROW(Loader(dataset, {.batch = 4, .first_row = -1, .rows = 2}), InternalError);
  EXPECT_THROW(Loader(dataset, {.batch = 4, .first_row = 4}), InternalError);
  EXPECT_THROW(Loader(nullptr, {}), InternalError);
}

}  // namespace
}  // namespace penstock::data
