#include "penstock/data/token_store.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "data/corpus.h"
#include "support/temp_folder.h"

namespace penstock::data {
namespace {

using test::expect_config_error;
using test::packed;
using test::read_tokens;
using test::TempFolder;
using test::write_file;
using Tokens = std::vector<int64_t>;
using Narrow = std::vector<uint16_t>;

TokenStore open_tokens(const std::string& path, int64_t vocabulary) {
  return TokenStore::open({.path = path, .tokenizer = "tokens", .vocabulary = vocabulary});
}

TEST(TokenStore, AnyRangeReadsAcrossFiles) {
  const TempFolder folder;
  write_file(folder.path() / "a.bin", packed(Narrow{0, 1, 2}));
  write_file(folder.path() / "b.bin", packed(Narrow{3}));
  write_file(folder.path() / "c.bin", packed(Narrow{4, 5}));
  const TokenStore store = open_tokens(folder.path().string(), 6);
  ASSERT_EQ(store.size(), 6);
  for (int64_t first = 0; first <= 6; ++first) {
    for (int64_t count = 0; first + count <= 6; ++count) {
      Tokens expected;
      for (int64_t i = 0; i < count; ++i) {
        expected.push_back(first + i);
      }
      EXPECT_EQ(read_tokens(store, first, count), expected) << first << " + " << count;
    }
  }
}

TEST(TokenStore, ReadOutsideIsOurBug) {
  const TempFolder folder;
  const TokenStore store = open_tokens(write_file(folder.path() / "a.bin", packed(Narrow{0})), 6);
  EXPECT_THROW(read_tokens(store, 0, 2), InternalError);
  EXPECT_THROW(read_tokens(store, -1, 1), InternalError);
  EXPECT_THROW(read_tokens(store, 2, 0), InternalError);
}

TEST(TokenStore, SurvivesAMove) {
  const TempFolder folder;
  const std::string path = write_file(folder.path() / "a.txt", "hi");
  TokenStore store = TokenStore::open({.path = path, .tokenizer = "bytes", .vocabulary = 300});
  const TokenStore moved = std::move(store);
  EXPECT_EQ(read_tokens(moved, 0, 2), (Tokens{'h', 'i'}));
}

TEST(TokenStore, IdBeyondTheVocabularyIsFoundByALookThroughAll) {
  const TempFolder folder;
  write_file(folder.path() / "a.bin", packed(Narrow(100000, 7)));
  Narrow tokens(100000, 49);
  tokens[70001] = 50;
  const std::string path = write_file(folder.path() / "b.bin", packed(tokens));
  const TokenStore sound = open_tokens(folder.path().string(), 51);
  EXPECT_EQ(sound.check(0, 200000), 400000);
  const TokenStore wrong = open_tokens(folder.path().string(), 50);
  EXPECT_EQ(wrong.check(0, 170001), 340002);
  EXPECT_EQ(wrong.check(170002, 200000), 59996);
  expect_config_error([&] { wrong.check(170001, 170002); },
                      {"data.path",
                       path,
                       "token 50 at position 70001",
                       "beyond model.vocabulary = 50",
                       "51 or more"});
}

TEST(TokenStore, IdsOfAVeryLargeStoreAreCheckedWhenRead) {
  const TempFolder folder;
  const std::string path = write_file(folder.path() / "a.bin", packed(Narrow{1, 2, 60000}));
  // The rest is a hole in the file: zeros that take no space.
  std::filesystem::resize_file(path, 2 * static_cast<uintmax_t>(TokenStore::kFullCheckTokens + 1));
  const TokenStore store = open_tokens(path, 50257);
  EXPECT_EQ(store.size(), TokenStore::kFullCheckTokens + 1);
  EXPECT_EQ(store.check(0, store.size()), 0);
  EXPECT_EQ(read_tokens(store, 0, 2), (Tokens{1, 2}));
  EXPECT_EQ(read_tokens(store, store.size() - 2, 2), (Tokens{0, 0}));
  expect_config_error([&] { read_tokens(store, 1, 3); },
                      {"data.path", path, "token 60000 at position 2", "model.vocabulary = 50257"});
}

TEST(TokenStore, VocabularyTooSmallForBytesIsRefused) {
  const TempFolder folder;
  const std::string path = write_file(folder.path() / "a.txt", "hi");
  const auto open = [&](int64_t vocabulary) {
    return TokenStore::open({.path = path, .tokenizer = "bytes", .vocabulary = vocabulary});
  };
  EXPECT_EQ(open(256).size(), 2);
  expect_config_error([&] { open(100); },
                      {"model.vocabulary = 100 is too small for data.tokenizer = \"bytes\"; it "
                       "needs 256"});
}

TEST(TokenStore, UnknownTokenizerIsRefusedWithAGuess) {
  const auto open = [](const std::string& tokenizer) {
    return TokenStore::open({.path = "x", .tokenizer = tokenizer, .vocabulary = 256});
  };
  expect_config_error([&] { open("byte"); },
                      {"data.tokenizer = \"byte\" is not known", "did you mean \"bytes\"?"});
  expect_config_error([&] { open("sentencepiece"); },
                      {"data.tokenizer = \"sentencepiece\" is not known", "\"tokens\""});
}

}  // namespace
}  // namespace penstock::data
