// Text corpora, as TokenStore opens them.
#include "penstock/data/text_source.h"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "penstock/data/token_store.h"
#include "penstock/data/tokenizer.h"

#include "data/corpus.h"
#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::data {
namespace {

using namespace std::string_literals;
using test::all_tokens;
using test::expect_config_error;
using test::read_tokens;
using test::TempFolder;
using test::write_file;

TokenStore open_store(const std::string& path) {
  return TokenStore::open({.path = path, .tokenizer = "bytes", .vocabulary = 256});
}

std::string text_of(const std::string& path) {
  return decode(all_tokens(open_store(path)));
}

TEST(TextSource, FileIsItsBytes) {
  const TempFolder folder;
  const std::string path = write_file(folder.path() / "a.txt", "na\xC3\xAFve\n");
  EXPECT_EQ(text_of(path), "na\xC3\xAFve\n");
}

TEST(TextSource, FilesOfAFolderAreSeparatedByEndOfDocument) {
  const TempFolder folder;
  write_file(folder.path() / "b.txt", "second");
  write_file(folder.path() / "a.txt", "first");
  write_file(folder.path() / "c/d.md", "third");
  EXPECT_EQ(text_of(folder.path().string()), "first\0second\0third"s);
}

TEST(TextSource, EntriesAreReadInTheGivenOrder) {
  const TempFolder folder;
  const std::string readme = write_file(folder.path() / "README.md", "read me");
  write_file(folder.path() / "src/b.cpp", "b");
  write_file(folder.path() / "src/a.cpp", "a");
  const std::string source = (folder.path() / "src").string();
  EXPECT_EQ(text_of(source + ", " + readme), "a\0b\0read me"s);
  EXPECT_EQ(text_of(readme + "," + source), "read me\0a\0b"s);
}

TEST(TextSource, EmptyAndBinaryFilesOfAFolderAreLeftOut) {
  const TempFolder folder;
  write_file(folder.path() / "a.txt", "a");
  write_file(folder.path() / "b.txt", "");
  write_file(folder.path() / "c.png", "PNG\0..."s);
  write_file(folder.path() / "d.txt", "d");
  write_file(folder.path() / ".hidden", "h");
  EXPECT_EQ(text_of(folder.path().string()), "a\0d"s);
}

TEST(TextSource, LargeFilesAreMappedBetweenSmallOnes) {
  const TempFolder folder;
  const std::string large(size_t{3} << 20, 'x');
  const std::string larger(size_t{4} << 20, 'y');
  write_file(folder.path() / "a", "a");
  write_file(folder.path() / "b", large);
  write_file(folder.path() / "c", larger);
  write_file(folder.path() / "d", "d");
  write_file(folder.path() / "e", "e");
  EXPECT_EQ(open_text({folder.path().string()}).size(), 5);
  const std::string expected = "a\0"s + large + "\0"s + larger + "\0d\0e"s;
  EXPECT_TRUE(text_of(folder.path().string()) == expected);

  const TokenStore store = open_store(folder.path().string());
  const int64_t seam = 2 + static_cast<int64_t>(large.size());
  EXPECT_EQ(decode(read_tokens(store, seam - 2, 4)), "xx\0y"s);
}

TEST(TextSource, SmallAndLargeFilesAreReadWhereTheyLie) {
  for (const size_t size : {size_t{3} << 10, size_t{2} << 20}) {
    const TempFolder folder;
    const std::string path = write_file(folder.path() / "a", std::string(size, 'x'));
    const std::vector<TokenSegment> segments = open_text({path});
    ASSERT_EQ(segments.size(), 1);
    EXPECT_EQ(segments[0].name(), path);
    EXPECT_EQ(segments[0].size(), static_cast<int64_t>(size));
    std::vector<int64_t> tokens(100);
    EXPECT_EQ(segments[0].read(7, tokens), 100);
  }
}

// The token between documents is in no file.
TEST(TextSource, SaysHowManyBytesOfFilesItReads) {
  const TempFolder folder;
  write_file(folder.path() / "a", "abc");
  write_file(folder.path() / "b", "de");
  const TokenStore store = open_store(folder.path().string());
  std::vector<int64_t> tokens(6);
  EXPECT_EQ(store.read(0, tokens), 5);
  EXPECT_EQ(store.read(3, std::span(tokens).first(1)), 0);
  EXPECT_EQ(tokens[0], kEndOfDocument);
}

TEST(TextSource, AFileThatHasBecomeShorterIsNamed) {
  const TempFolder folder;
  const std::string path = write_file(folder.path() / "a", "abcdef");
  const TokenStore store = open_store(path);
  write_file(path, "abc");
  EXPECT_EQ(decode(read_tokens(store, 0, 3)), "abc");
  const std::string text = test::error_text<FileError>([&] { read_tokens(store, 2, 4); });
  EXPECT_NE(text.find(path), std::string::npos) << text;
}

// Where a binary file begins like text, its zeros are ends of documents.
TEST(TextSource, OnlyTheHeadOfAFileTellsBinaryFromText) {
  const TempFolder folder;
  const std::string head(7999, 'x');
  const std::string path = write_file(folder.path() / "a", head + "x\0y"s);
  EXPECT_EQ(all_tokens(open_store(path)).size(), 8002);
  write_file(path, head + "\0y"s);
  expect_config_error([&] { open_store(path); }, {"NUL byte at position 7999"});
}

TEST(TextSource, MissingPathIsRefused) {
  expect_config_error([] { open_store("no-such-corpus"); },
                      {"data.path = \"no-such-corpus\" does not exist"});
}

TEST(TextSource, OneMissingEntryAmongOthersIsRefused) {
  const TempFolder folder;
  const std::string path = write_file(folder.path() / "a.txt", "text");
  expect_config_error([&] { open_store(path + ",absent"); },
                      {"data.path = \"absent\" does not exist"});
}

TEST(TextSource, FolderWithoutTextIsRefused) {
  const TempFolder folder;
  const std::string path = folder.path().string();
  expect_config_error([&] { open_store(path); },
                      {cat("data.path = \"", path, "\""), "no text files"});
  write_file(folder.path() / "binary", "\0"s);
  write_file(folder.path() / "empty", "");
  write_file(folder.path() / ".hidden", "text");
  expect_config_error([&] { open_store(path); }, {"no text files", "1 empty", "1 binary"});
}

TEST(TextSource, EmptyFileIsRefused) {
  const TempFolder folder;
  const std::string path = write_file(folder.path() / "a.txt", "");
  expect_config_error([&] { open_store(path); }, {cat("data.path = \"", path, "\" is empty")});
}

TEST(TextSource, BinaryFileNamedByTheUserIsRefused) {
  const TempFolder folder;
  const std::string path = write_file(folder.path() / "a.bin", "abc\0"s);
  expect_config_error(
      [&] { open_store(path); },
      {cat("data.path = \"", path, "\" is not text"), "NUL byte at position 3", "data.tokenizer"});
}

}  // namespace
}  // namespace penstock::data
