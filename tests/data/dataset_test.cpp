#include "penstock/data/dataset.h"

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "data/corpus.h"

namespace penstock::data {
namespace {

using test::expect_config_error;
using Indices = std::vector<size_t>;

// As little of a dataset as can be written.
class Smallest : public Dataset {
 public:
  Smallest(int64_t samples, std::vector<Field> fields)
      : samples_(samples), fields_(std::move(fields)) {}

  int64_t samples() const override { return samples_; }
  const std::vector<Field>& fields() const override { return fields_; }
  int64_t read(int64_t sample, size_t field, std::span<std::byte> into) const override {
    check_read(sample, field, into);
    return 0;
  }
  std::string fingerprint() const override { return "smallest"; }

 private:
  int64_t samples_;
  std::vector<Field> fields_;
};

TEST(Dataset, SizeIsInSamplesUnlessItSaysOtherwise) {
  EXPECT_EQ(Smallest(1200, {{"a"}}).size_text(), "1,200 samples");
  EXPECT_EQ(Smallest(1, {{"a"}}).size_text(), "1 sample");
}

TEST(Dataset, HasNothingToLookThroughUnlessItSaysOtherwise) {
  EXPECT_EQ(Smallest(5, {{"a"}}).check(0, 1), 0);
}

TEST(Dataset, FindsFieldsByName) {
  const Smallest dataset(5, {{"inputs"}, {"targets"}});
  EXPECT_EQ(dataset.find("inputs"), 0);
  EXPECT_EQ(dataset.find("targets"), 1);
  EXPECT_EQ(dataset.find("mask"), -1);
}

TEST(Dataset, WrongReadIsOurBug) {
  const Smallest dataset(5, {{"a", FieldType::Int32, {2}}});
  std::vector<std::byte> eight(8), nine(9);
  dataset.read(4, 0, eight);
  EXPECT_THROW(dataset.read(5, 0, eight), InternalError);
  EXPECT_THROW(dataset.read(-1, 0, eight), InternalError);
  EXPECT_THROW(dataset.read(0, 1, eight), InternalError);
  EXPECT_THROW(dataset.read(0, 0, nine), InternalError);
}

TEST(ChosenFields, AreAllForNoNames) {
  EXPECT_EQ(chosen_fields(Smallest(5, {{"a"}, {"b"}, {"c"}}), {}), (Indices{0, 1, 2}));
}

TEST(ChosenFields, AreInTheOrderAskedForAndEachOnce) {
  const Smallest dataset(5, {{"a"}, {"b"}, {"c"}});
  EXPECT_EQ(chosen_fields(dataset, {"c", "a", "c"}), (Indices{2, 0}));
}

TEST(ChosenFields, UnknownNameIsRefused) {
  const Smallest dataset(5, {{"inputs"}, {"targets"}});
  expect_config_error(
      [&] {
        chosen_fields(dataset, {"targets", "mask"});
      },
      {"the data has no field \"mask\"; it has inputs, targets"});
}

TEST(ChosenFields, DataThatCannotBeReadIsRefused) {
  expect_config_error([] { chosen_fields(Smallest(5, {}), {}); }, {"the data has no fields"});
  expect_config_error(
      [] {
        chosen_fields(Smallest(5, {{"a"}, {"a"}}), {"a"});
      },
      {"the data has two fields \"a\""});
  expect_config_error([] { chosen_fields(Smallest(0, {{"a"}}), {}); },
                      {"the data has no samples; give it at least one"});
}

}  // namespace
}  // namespace penstock::data
