// Token files, as TokenStore opens them.
#include "penstock/data/token_file.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/data/token_store.h"

#include "data/corpus.h"
#include "support/temp_folder.h"

namespace penstock::data {
namespace {

using test::all_tokens;
using test::expect_config_error;
using test::packed;
using test::TempFolder;
using test::write_file;
using Tokens = std::vector<int64_t>;
using Narrow = std::vector<uint16_t>;
using Wide = std::vector<uint32_t>;

TokenStore open_store(const std::string& path, int64_t vocabulary) {
  return TokenStore::open({.path = path, .tokenizer = "tokens", .vocabulary = vocabulary});
}

std::string header(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> fields(256);
  fields[0] = magic;
  fields[1] = version;
  fields[2] = count;
  return packed(fields);
}

class TokenFile : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) {
    return write_file(folder_.path() / name, content);
  }
  std::string folder() const { return folder_.path().string(); }

 private:
  TempFolder folder_;
};

TEST_F(TokenFile, RawFileHasTheWidthOfTheVocabulary) {
  const std::string narrow = write("narrow.bin", packed(Narrow{1, 50000, 65535}));
  EXPECT_EQ(all_tokens(open_store(narrow, 65536)), (Tokens{1, 50000, 65535}));
  const std::string wide = write("wide.bin", packed(Wide{1, 65536, 100000}));
  EXPECT_EQ(all_tokens(open_store(wide, 100001)), (Tokens{1, 65536, 100000}));
}

TEST_F(TokenFile, HeaderTellsTheWidth) {
  const std::string narrow =
      write("narrow.bin", header(20240520, 1, 3) + packed(Narrow{1, 2, 50256}));
  EXPECT_EQ(all_tokens(open_store(narrow, 50257)), (Tokens{1, 2, 50256}));
  EXPECT_EQ(all_tokens(open_store(narrow, 128256)), (Tokens{1, 2, 50256}));
  const std::string wide = write("wide.bin", header(20240801, 7, 2) + packed(Wide{1, 128255}));
  EXPECT_EQ(all_tokens(open_store(wide, 128256)), (Tokens{1, 128255}));
}

TEST_F(TokenFile, FilesOfAFolderFollowEachOtherInTheOrderOfTheirNames) {
  write("shard_2.bin", packed(Narrow{3, 4}));
  write("shard_1.bin", header(20240520, 1, 2) + packed(Narrow{1, 2}));
  write("more/shard_0.bin", packed(Narrow{0}));
  write("empty.bin", "");
  write("meta.json", "{}!");
  EXPECT_EQ(all_tokens(open_store(folder(), 10)), (Tokens{0, 1, 2, 3, 4}));
}

TEST_F(TokenFile, EntriesAreReadInTheGivenOrder) {
  const std::string a = write("a.bin", packed(Narrow{1}));
  const std::string b = write("b.bin", packed(Narrow{2}));
  EXPECT_EQ(all_tokens(open_store(b + "," + a, 10)), (Tokens{2, 1}));
}

TEST_F(TokenFile, SizeThatIsNoMultipleOfTheTokenIsRefused) {
  const std::string path = write("a.bin", "123456");
  EXPECT_EQ(open_token_files({path}, 65536)[0].size(), 3);
  expect_config_error([&] { open_store(path, 65537); },
                      {"data.path", path, "6 bytes", "not a multiple of 4", "65537"});
  const std::string odd = write("b.bin", "1");
  expect_config_error([&] { open_store(odd, 100); },
                      {"data.path", odd, "1 bytes", "not a multiple of 2", "100"});
}

TEST_F(TokenFile, CountThatDisagreesWithTheSizeIsRefused) {
  for (const int32_t count : {-1, 1, 3}) {
    const std::string path = write("a.bin", header(20240520, 1, count) + packed(Narrow{1, 2}));
    expect_config_error([&] { open_store(path, 100); },
                        {"data.path", path, cat("promises ", count, " tokens"), "4 bytes after"});
  }
}

TEST_F(TokenFile, UnknownHeaderVersionIsRefused) {
  const std::string narrow = write("a.bin", header(20240520, 2, 1) + packed(Narrow{1}));
  expect_config_error([&] { open_store(narrow, 100); },
                      {"data.path", narrow, "header version 2", "only version 1"});
  const std::string wide = write("b.bin", header(20240801, 1, 1) + packed(Wide{1}));
  expect_config_error([&] { open_store(wide, 100); },
                      {"data.path", wide, "header version 1", "only version 7"});
}

TEST_F(TokenFile, FileThatEndsWithinItsHeaderIsRefused) {
  const std::string path = write("a.bin", header(20240520, 1, 0).substr(0, 100));
  expect_config_error([&] { open_store(path, 100); },
                      {"data.path", path, "ends within its header", "100 of 1024"});
}

TEST_F(TokenFile, CorpusWithoutTokensIsRefused) {
  const std::string empty = write("a.bin", "");
  expect_config_error([&] { open_store(empty, 100); },
                      {cat("data.path = \"", empty, "\" is empty")});
  const std::string bare = write("b.bin", header(20240520, 1, 0));
  expect_config_error([&] { open_store(bare, 100); }, {cat("data.path = \"", bare, "\" is empty")});
  expect_config_error([&] { open_store(folder(), 100); },
                      {cat("data.path = \"", folder(), "\" is empty")});
}

TEST_F(TokenFile, FolderWithoutTokenFilesIsRefused) {
  write("a.txt", "text");
  expect_config_error([&] { open_store(folder(), 100); },
                      {cat("data.path = \"", folder(), "\""), "no token files", "data.tokenizer"});
}

TEST_F(TokenFile, TextFileIsRefused) {
  const std::string path = write("a.txt", "text");
  expect_config_error([&] { open_store(path, 50257); },
                      {cat("data.path = \"", path, "\" is not a token file"), "data.tokenizer"});
}

TEST_F(TokenFile, MissingPathIsRefused) {
  expect_config_error([&] { open_store("absent.bin", 100); },
                      {"data.path = \"absent.bin\" does not exist"});
}

}  // namespace
}  // namespace penstock::data
