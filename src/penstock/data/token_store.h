// The corpus as one sequence of tokens, whatever files it comes from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/data/token_segment.h"

namespace penstock::data {

struct SourceOptions {
  std::string path;       // data.path: files and folders, separated by commas
  std::string tokenizer;  // data.tokenizer: "bytes" for text, "tokens" for token files
  int64_t vocabulary = 0;
};

class TokenStore {
 public:
  // Up to this many tokens, check() looks at every id, so that a wrong one is found before training.
  // Larger stores would take minutes; there an id is checked when it is read.
  static constexpr int64_t kFullCheckTokens = int64_t{1} << 28;

  // Never empty. Throws ConfigError for what the user can set right: see open_text,
  // open_token_files.
  static TokenStore open(const SourceOptions& options);

  int64_t size() const { return starts_.back(); }

  // Tokens [first, first + out.size()), which must lie inside; returns how many bytes they take in
  // the files. Safe from several threads at once. Throws ConfigError when an id is not below the
  // vocabulary.
  int64_t read(int64_t first, std::span<int64_t> out) const;

  // Reads tokens [first, end), where there may be a wrong id and looking for it takes no minutes.
  // Returns how many bytes that took.
  int64_t check(int64_t first, int64_t end) const;

 private:
  TokenStore(std::vector<TokenSegment> segments, int64_t vocabulary, bool has_ids);

  std::vector<TokenSegment> segments_;
  std::vector<int64_t> starts_;  // first token of each segment, and the end
  int64_t vocabulary_;
  bool has_ids_;  // bytes fit by their nature
};

}  // namespace penstock::data
