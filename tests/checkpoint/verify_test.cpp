#include "penstock/checkpoint/verify.h"

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/comm/local.h"

#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::error_text;
using test::TempFolder;

class VerifyFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string name : {"a", "b"}) {
      const std::string content = "content of " + name;
      write_text_file(folder_.path() / name, content);
      manifest_.files.push_back(
          {name, static_cast<int64_t>(content.size()), crc32c(content.data(), content.size())});
    }
  }
  std::string error() {
    return error_text<CheckpointError>([&] { verify_files(folder_.path(), manifest_); });
  }
  std::string damaged() const { return "checkpoint " + folder_.path().string() + " is damaged: "; }

  TempFolder folder_;
  Manifest manifest_;
};

TEST_F(VerifyFiles, AcceptsWholeFiles) {
  verify_files(folder_.path(), manifest_);
}

TEST_F(VerifyFiles, NamesAMissingFile) {
  fs::remove(folder_.path() / "b");
  EXPECT_EQ(error(), damaged() + "b is missing; use an older checkpoint");
}

TEST_F(VerifyFiles, GivesBothSizes) {
  fs::resize_file(folder_.path() / "b", 3);
  EXPECT_EQ(error(), damaged() + "b has 3 bytes, its manifest says 12; use an older checkpoint");
}

TEST_F(VerifyFiles, GivesBothChecksums) {
  write_text_file(folder_.path() / "a", "Content of a");
  manifest_.files[0].crc32c = 0x0000beef;
  const std::string text = error();
  EXPECT_EQ(text.find(damaged() + "a has checksum "), 0u) << text;
  EXPECT_NE(text.find(", its manifest says 0000beef; use an older checkpoint"), std::string::npos);
}

TEST_F(VerifyFiles, FolderInPlaceOfAFileIsAFileError) {
  fs::remove(folder_.path() / "a");
  fs::create_directory(folder_.path() / "a");
  EXPECT_THROW(verify_files(folder_.path(), manifest_), FileError);
}

TEST_F(VerifyFiles, AcceptsAnEmptyFile) {
  write_text_file(folder_.path() / "empty", "");
  manifest_.files.push_back({"empty", 0, 0});
  verify_files(folder_.path(), manifest_);
}

// Files of all sizes, shared by so many ranks; what each rank says.
class VerifyTogether : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const size_t size : {size_t{1}, size_t{0}, size_t{(5 << 20) + 3}, size_t{17}}) {
      std::string content(size, ' ');
      for (size_t i = 0; i < size; ++i) {
        content[i] = static_cast<char>(i * 7 + i / 1000);
      }
      const std::string name = "file-" + std::to_string(size);
      write_text_file(folder_.path() / name, content);
      manifest_.files.push_back(
          {name, static_cast<int64_t>(size), crc32c(content.data(), content.size())});
    }
  }

  std::vector<std::string> errors_of(int32_t ranks) {
    std::vector<std::string> errors(static_cast<size_t>(ranks));
    comm::run_local(ranks, [&](comm::Group& group) {
      try {
        verify_files(folder_.path(), manifest_, group);
      } catch (const Error& error) {
        errors[static_cast<size_t>(group.rank())] = error.what();
      }
    });
    return errors;
  }

  TempFolder folder_;
  Manifest manifest_;
};

TEST_F(VerifyTogether, AcceptsWholeFilesHoweverManyShareThem) {
  for (const int32_t ranks : {1, 2, 3, 7}) {
    EXPECT_EQ(errors_of(ranks), std::vector<std::string>(static_cast<size_t>(ranks))) << ranks;
  }
}

TEST_F(VerifyTogether, EveryRankNamesADamagedByteWhereverItIs) {
  const fs::path path = folder_.path() / manifest_.files[2].name;
  const std::string content = read_text_file(path);
  for (const size_t place : {size_t{0}, content.size() / 2, content.size() - 1}) {
    std::string damaged = content;
    damaged[place] = static_cast<char>(damaged[place] ^ 4);
    write_text_file(path, damaged);
    const std::vector<std::string> errors = errors_of(3);
    EXPECT_NE(errors[0].find("is damaged: " + manifest_.files[2].name + " has checksum "),
              std::string::npos)
        << errors[0];
    EXPECT_EQ(errors, std::vector<std::string>(3, errors[0]));
  }
}

TEST_F(VerifyTogether, EveryRankNamesAMissingFile) {
  fs::remove(folder_.path() / manifest_.files[3].name);
  const std::vector<std::string> errors = errors_of(4);
  EXPECT_NE(errors[0].find(manifest_.files[3].name + " is missing"), std::string::npos);
  EXPECT_EQ(errors, std::vector<std::string>(4, errors[0]));
}

}  // namespace
}  // namespace penstock::checkpoint
