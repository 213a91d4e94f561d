#include "penstock/checkpoint/safetensors_writer.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/checkpoint/safetensors.h"

#include "support/temp_folder.h"

namespace penstock::checkpoint {
namespace {

using test::TempFolder;

// Any bytes will do, as long as two tensors do not have the same.
std::string filling(const TensorEntry& entry) {
  std::mt19937 random(static_cast<unsigned>(entry.begin * 31 + entry.name.size()));
  std::string bytes(entry.end - entry.begin, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(random());
  }
  return bytes;
}

void write_all(SafetensorsWriter& writer) {
  for (const TensorEntry& entry : writer.layout()) {
    const std::string bytes = filling(entry);
    writer.write(entry.name, bytes.data(), bytes.size());
  }
  writer.finish();
}

void expect_reads_back(const std::filesystem::path& path, const std::vector<TensorSpec>& specs) {
  const SafetensorsFile file(path);
  EXPECT_EQ(file.header().data_begin % 8, 0u);
  EXPECT_EQ(file.header().tensors.size(), specs.size());
  for (const TensorSpec& spec : specs) {
    const TensorEntry* entry = file.find(spec.name);
    ASSERT_NE(entry, nullptr) << spec.name;
    EXPECT_EQ(entry->dtype, spec.dtype);
    EXPECT_EQ(entry->shape, spec.shape);
    EXPECT_EQ(entry->begin % static_cast<size_t>(dtype_bytes(spec.dtype)), 0u) << spec.name;
    const std::string expected = filling(*entry);
    ASSERT_EQ(file.data(*entry).size(), expected.size());
    EXPECT_EQ(std::memcmp(file.data(*entry).data(), expected.data(), expected.size()), 0);
  }
}

TEST(SafetensorsWriter, RoundTripsEveryDtypeWithEmptyAndScalarTensors) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  std::vector<TensorSpec> specs;
  for (int i = 0; i <= static_cast<int>(Dtype::U64); ++i) {
    const Dtype dtype = static_cast<Dtype>(i);
    const std::string name(dtype_name(dtype));
    specs.push_back({name + ".scalar", dtype, {}});
    specs.push_back({name + ".empty", dtype, {3, 0, 2}});
    specs.push_back({name + ".matrix", dtype, {3, 5}});
  }
  SafetensorsWriter writer(path, specs, {{"format", "pt"}, {"quote\"\n", "\\é"}});
  write_all(writer);
  expect_reads_back(path, specs);
  EXPECT_EQ(SafetensorsFile(path).header().metadata.at("quote\"\n"), "\\é");
}

TEST(SafetensorsWriter, RoundTripsRandomSetsOfTensors) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<TensorSpec> specs;
    for (unsigned i = random() % 12; i > 0; --i) {
      TensorSpec spec{"t" + std::to_string(random()), static_cast<Dtype>(random() % 15), {}};
      for (unsigned dims = random() % 4; dims > 0; --dims) {
        spec.shape.push_back(random() % 6);
      }
      specs.push_back(spec);
    }
    SafetensorsWriter writer(path, specs);
    write_all(writer);
    expect_reads_back(path, specs);
  }
}

TEST(SafetensorsWriter, KeepsTheGivenOrderAmongElementsOfOneSize) {
  const TempFolder folder;
  const SafetensorsWriter writer(folder.path() / "x",
                                 {{"z", Dtype::F32, {1}},
                                  {"half", Dtype::BF16, {1}},
                                  {"a", Dtype::F32, {1}},
                                  {"long", Dtype::I64, {1}}});
  std::string order;
  for (const TensorEntry& entry : writer.layout()) {
    order += entry.name + " ";
  }
  EXPECT_EQ(order, "long z a half ");
}

TEST(SafetensorsWriter, GivesSizeAndChecksumOfTheWholeFile) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  SafetensorsWriter writer(path, {{"a", Dtype::F32, {5}}});
  write_all(writer);
  const MappedFile file(path);
  EXPECT_EQ(writer.size(), static_cast<int64_t>(file.bytes().size()));
  EXPECT_EQ(writer.checksum(), crc32c(file.bytes().data(), file.bytes().size()));
}

TEST(SafetensorsWriter, WritesAFileWithoutTensors) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  SafetensorsWriter writer(path, {});
  writer.finish();
  expect_reads_back(path, {});
}

TEST(SafetensorsWriter, RefusesWritesOutOfOrder) {
  const TempFolder folder;
  SafetensorsWriter writer(folder.path() / "x", {{"a", Dtype::U8, {1}}, {"b", Dtype::U8, {1}}});
  EXPECT_THROW(writer.write("b", "x", 1), InternalError);
  EXPECT_THROW(writer.write("a", "xy", 2), InternalError);
  writer.write("a", "x", 1);
  EXPECT_THROW(writer.write("a", "x", 1), InternalError);
  EXPECT_THROW(writer.finish(), InternalError);
  writer.write("b", "x", 1);
  EXPECT_THROW(writer.write("b", "x", 1), InternalError);
  writer.finish();
}

TEST(SafetensorsWriter, RefusesWhatAReaderWouldReject) {
  const TempFolder folder;
  const auto path = folder.path() / "x";
  const auto make = [&](const std::vector<TensorSpec>& specs) { SafetensorsWriter(path, specs); };
  EXPECT_THROW(make({{"a", Dtype::U8, {}}, {"a", Dtype::I8, {}}}), InternalError);
  EXPECT_THROW(make({{"__metadata__", Dtype::U8, {}}}), InternalError);
  EXPECT_THROW(make({{"a", Dtype::U8, {-1}}}), InternalError);
  EXPECT_THROW(make({{"a", Dtype::F64, {INT64_MAX}}}), InternalError);
  EXPECT_THROW(make({{"a\xFF", Dtype::U8, {}}}), InternalError);
  EXPECT_THROW(SafetensorsWriter(path, {}, {{"k", "\xFF"}}), InternalError);
}

TEST(SafetensorsWriter, FullDiskIsAFileError) {
  EXPECT_THROW(SafetensorsWriter("/dev/full", {}), FileError);
}

}  // namespace
}  // namespace penstock::checkpoint
