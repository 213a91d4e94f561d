// The example of docs/own_datasets.md works, and is the one that stands there.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/file.h"
#include "penstock/data/loader.h"
#include "penstock/data/sample_order.h"

#include "data/corpus.h"
#include "data/field_values.h"
#include "data/record_dataset.h"
#include "support/temp_folder.h"

namespace penstock::data {
namespace {

using test::packed;
using test::TempFolder;
using test::values_of;

// Record k has the features k, k + 0.125, ... and the label 100 + k.
std::string write_records(const TempFolder& folder, int64_t count) {
  std::string bytes;
  for (int64_t k = 0; k < count; ++k) {
    for (int i = 0; i < 8; ++i) {
      bytes += packed(std::vector<float>{static_cast<float>(k) + 0.125F * static_cast<float>(i)});
    }
    bytes += packed(std::vector<int64_t>{100 + k});
  }
  return test::write_file(folder.path() / "train.records", bytes);
}

TEST(OwnDataset, LoaderGivesBatchesOfIt) {
  const TempFolder folder;
  const auto dataset = std::make_shared<const RecordDataset>(write_records(folder, 50));
  EXPECT_EQ(dataset->size_text(), "50 samples");
  const SampleOrder order(50, 1);
  Loader loader(dataset, {.seed = 1, .batch = 16, .first_row = 8, .rows = 8});
  for (int64_t first = 0; first < 64; first += 16) {
    const Batch batch = loader.next();
    const std::vector<float> features = values_of<float>(batch, "features");
    const std::vector<int64_t> labels = values_of<int64_t>(batch, "label");
    ASSERT_EQ(features.size(), 64);
    ASSERT_EQ(labels.size(), 8);
    for (size_t row = 0; row < 8; ++row) {
      const int64_t sample = order.at(first + 8 + static_cast<int64_t>(row));
      EXPECT_EQ(features[row * 8 + 3], static_cast<float>(sample) + 0.375F);
      EXPECT_EQ(labels[row], 100 + sample);
    }
  }
}

TEST(OwnDataset, ReadsOnlyWhatIsAskedFor) {
  const TempFolder folder;
  const RecordDataset dataset(write_records(folder, 50));
  EXPECT_EQ(read_in_order(dataset, 10, 5, {"label"}).read_bytes, 5 * 8);
  EXPECT_EQ(read_in_order(dataset, 10, 5).read_bytes, 5 * 40);
}

TEST(OwnDataset, FingerprintTellsFilesApart) {
  const TempFolder one, other;
  const std::string print = RecordDataset(write_records(one, 50)).fingerprint();
  EXPECT_EQ(print, RecordDataset(write_records(other, 50)).fingerprint());
  EXPECT_NE(print, RecordDataset(write_records(other, 49)).fingerprint());
}

TEST(OwnDataset, PartOfARecordIsRefused) {
  const TempFolder folder;
  for (const size_t bytes : {0, 39, 41}) {
    const std::string path = test::write_file(folder.path() / "a", std::string(bytes, 'x'));
    test::expect_config_error(
        [&] { RecordDataset dataset(path); },
        {path, cat("has ", bytes, " bytes, which is no whole number of records of 40 bytes")});
  }
}

TEST(OwnDataset, StandsInTheDocs) {
  const std::string page = read_text_file(PENSTOCK_SOURCE_DIR "/docs/own_datasets.md");
  const std::string code = read_text_file(PENSTOCK_SOURCE_DIR "/tests/data/record_dataset.h");
  EXPECT_NE(page.find(code), std::string::npos)
      << "paste tests/data/record_dataset.h into docs/own_datasets.md";
}

}  // namespace
}  // namespace penstock::data
