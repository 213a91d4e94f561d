// Small corpora on disk for the data tests, and what a test asks of an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/data/token_store.h"

#include "support/temp_folder.h"

namespace penstock::test {

inline std::string write_file(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  EXPECT_TRUE(file) << path;
  return path.string();
}

// Integers as they lie in a little-endian file.
template <typename Integer>
std::string packed(const std::vector<Integer>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Integer)};
}

inline std::vector<int64_t> read_tokens(const data::TokenStore& store,
                                        int64_t first,
                                        int64_t count) {
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  store.read(first, tokens);
  return tokens;
}

inline std::vector<int64_t> all_tokens(const data::TokenStore& store) {
  return read_tokens(store, 0, store.size());
}

// A store of the tokens 0, 1, 2, ..., count - 1. It stays readable when the folder is gone.
inline std::shared_ptr<const data::TokenStore> counting_store(int64_t count) {
  const TempFolder folder;
  std::vector<uint32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0u);
  const std::string path = write_file(folder.path() / "count.bin", packed(tokens));
  return std::make_shared<const data::TokenStore>(
      data::TokenStore::open({.path = path, .tokenizer = "tokens", .vocabulary = 1 << 20}));
}

// The work throws a ConfigError, in one line, with all these parts in its text.
template <typename Work>
void expect_config_error(Work&& work, std::initializer_list<std::string_view> parts) {
  try {
    work();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    for (const std::string_view part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
    }
    return;
  }
  ADD_FAILURE() << "no ConfigError";
}

}  // namespace penstock::test
