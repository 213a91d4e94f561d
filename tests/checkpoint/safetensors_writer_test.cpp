#include "penstock/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/checkpoint/safetensors.h"

#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::checkpoint {
namespace {

using test::error_text;
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

// Gives the file's checksum.
uint32_t write_all(const std::filesystem::path& path, const SafetensorsLayout& layout) {
  create_safetensors(path, layout);
  SafetensorsWriter writer(path, layout);
  for (const TensorEntry& entry : layout.tensors()) {
    const std::string bytes = filling(entry);
    writer.write(entry, 0, bytes.data(), bytes.size());
  }
  writer.finish();
  return checksum_of_file(layout, writer.written(), path);
}

uint32_t checksum_on_disk(const std::filesystem::path& path) {
  const MappedFile file(path);
  return crc32c(file.bytes().data(), file.bytes().size());
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
    std::string found(entry->end - entry->begin, '?');
    file.read(*entry, 0, std::as_writable_bytes(std::span(found)));
    EXPECT_EQ(found, expected);
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
  write_all(path, SafetensorsLayout(specs, {{"format", "pt"}, {"quote\"\n", "\\é"}}));
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
    write_all(path, SafetensorsLayout(specs));
    expect_reads_back(path, specs);
  }
}

TEST(SafetensorsLayout, KeepsTheGivenOrderAmongElementsOfOneSize) {
  const SafetensorsLayout layout({{"z", Dtype::F32, {1}},
                                  {"half", Dtype::BF16, {1}},
                                  {"a", Dtype::F32, {1}},
                                  {"long", Dtype::I64, {1}}});
  std::string order;
  for (const TensorEntry& entry : layout.tensors()) {
    order += entry.name + " ";
  }
  EXPECT_EQ(order, "long z a half ");
}

TEST(SafetensorsWriter, GivesTheChecksumOfTheWholeFile) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const SafetensorsLayout layout({{"a", Dtype::F32, {5}}, {"b", Dtype::F32, {3}}});
  const uint32_t checksum = write_all(path, layout);
  EXPECT_EQ(checksum, checksum_on_disk(path));
  EXPECT_EQ(layout.file_bytes(), static_cast<int64_t>(std::filesystem::file_size(path)));
}

TEST(SafetensorsWriter, WritesAFileWithoutTensors) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const uint32_t checksum = write_all(path, SafetensorsLayout(std::vector<TensorSpec>{}));
  EXPECT_EQ(checksum, checksum_on_disk(path));
  expect_reads_back(path, {});
}

// Parts of tensors, in any order, by several writers.
TEST(SafetensorsWriter, WritersOfOneFileGiveTheSameBytesAndChecksum) {
  const TempFolder folder;
  const auto whole = folder.path() / "whole";
  const auto shared = folder.path() / "shared";
  std::mt19937 random(9);
  const std::vector<TensorSpec> specs{
      {"a", Dtype::F32, {70}}, {"b", Dtype::U8, {33}}, {"empty", Dtype::F32, {0}}};
  const SafetensorsLayout layout(specs);
  const uint32_t expected = write_all(whole, layout);
  for (int round = 0; round < 30; ++round) {
    create_safetensors(shared, layout);
    std::vector<SafetensorsWriter> writers;
    for (unsigned i = 0; i < 1 + random() % 4; ++i) {
      writers.emplace_back(shared, layout);
    }
    for (const TensorEntry& entry : layout.tensors()) {
      const std::string bytes = filling(entry);
      for (size_t first = 0; first < bytes.size();) {
        const size_t count = std::min<size_t>(1 + random() % 50, bytes.size() - first);
        writers[random() % writers.size()].write(entry, first, bytes.data() + first, count);
        first += count;
      }
    }
    std::vector<Stretch> written;
    for (SafetensorsWriter& writer : writers) {
      writer.finish();
      written.insert(written.begin(), writer.written().begin(), writer.written().end());
    }
    EXPECT_EQ(checksum_of_file(layout, written, shared), expected);
    EXPECT_EQ(read_text_file(shared), read_text_file(whole));
  }
}

TEST(SafetensorsWriter, RefusesBytesBesideTheTensor) {
  const TempFolder folder;
  const SafetensorsLayout layout({{"a", Dtype::U8, {2}}, {"b", Dtype::U8, {1}}});
  create_safetensors(folder.path() / "x", layout);
  SafetensorsWriter writer(folder.path() / "x", layout);
  EXPECT_THROW(writer.write(layout.find("a"), 0, "xyz", 3), InternalError);
  EXPECT_THROW(writer.write(layout.find("a"), 2, "x", 1), InternalError);
  EXPECT_THROW(writer.write(layout.find("a"), 3, "", 0), InternalError);
  EXPECT_THROW(layout.find("c"), InternalError);
}

TEST(SafetensorsWriter, RefusesAFileThatIsNotWrittenAllAndOnce) {
  const TempFolder folder;
  const auto path = folder.path() / "x";
  const SafetensorsLayout layout({{"a", Dtype::U8, {4}}});
  create_safetensors(path, layout);
  const auto text_of = [&](const std::vector<size_t>& bytes) {
    SafetensorsWriter writer(path, layout);
    for (const size_t byte : bytes) {
      writer.write(layout.find("a"), byte, "x", 1);
    }
    return error_text<InternalError>([&] { checksum_of_file(layout, writer.written(), path); });
  };
  EXPECT_NE(text_of({0, 1, 2}).find("was written up to byte"), std::string::npos);
  EXPECT_NE(text_of({0, 1, 3}).find("was not written from byte"), std::string::npos);
  EXPECT_NE(text_of({0, 1, 2, 3, 2}).find("was written twice from byte"), std::string::npos);
}

TEST(SafetensorsLayout, RefusesWhatAReaderWouldReject) {
  const auto make = [&](const std::vector<TensorSpec>& specs) { SafetensorsLayout{specs}; };
  EXPECT_THROW(make({{"a", Dtype::U8, {}}, {"a", Dtype::I8, {}}}), InternalError);
  EXPECT_THROW(make({{"__metadata__", Dtype::U8, {}}}), InternalError);
  EXPECT_THROW(make({{"a", Dtype::U8, {-1}}}), InternalError);
  EXPECT_THROW(make({{"a", Dtype::F64, {INT64_MAX}}}), InternalError);
  EXPECT_THROW(make({{"a\xFF", Dtype::U8, {}}}), InternalError);
  EXPECT_THROW(SafetensorsLayout(std::vector<TensorSpec>{}, {{"k", "\xFF"}}), InternalError);
}

TEST(SafetensorsWriter, FullDiskIsAFileError) {
  const SafetensorsLayout layout({{"a", Dtype::U8, {1}}});
  EXPECT_THROW(create_safetensors("/dev/full", layout), FileError);
  SafetensorsWriter writer("/dev/full", layout);
  EXPECT_EQ(error_text<FileError>([&] { writer.write(layout.find("a"), 0, "x", 1); }),
            "cannot write /dev/full: No space left on device");
}

}  // namespace
}  // namespace penstock::checkpoint
