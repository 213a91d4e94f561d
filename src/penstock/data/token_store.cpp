#include "penstock/data/token_store.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/data/source_files.h"
#include "penstock/data/text_source.h"
#include "penstock/data/token_file.h"
#include "penstock/data/tokenizer.h"

namespace penstock::data {

namespace {

std::vector<TokenSegment> open_segments(const SourceOptions& options) {
  if (options.tokenizer == "bytes") {
    if (options.vocabulary < kByteVocabulary) {
      throw ConfigError(cat("model.vocabulary = ",
                            options.vocabulary,
                            " is too small for data.tokenizer = \"bytes\"; it needs ",
                            kByteVocabulary));
    }
    return open_text(split_entries(options.path));
  }
  if (options.tokenizer == "tokens") {
    return open_token_files(split_entries(options.path), options.vocabulary);
  }
  const std::string guess = nearest(options.tokenizer, {"bytes", "tokens"});
  throw ConfigError(cat("data.tokenizer = \"",
                        options.tokenizer,
                        "\" is not known; it can be \"bytes\" (text) or \"tokens\" (token files)",
                        guess.empty() ? "" : cat("; did you mean \"", guess, "\"?")));
}

[[noreturn]] void fail_token(const TokenSegment& segment,
                             int64_t position,
                             int64_t token,
                             int64_t vocabulary) {
  throw ConfigError(cat("data.path: ",
                        segment.name(),
                        " has token ",
                        token,
                        " at position ",
                        position,
                        ", beyond model.vocabulary = ",
                        vocabulary,
                        "; set model.vocabulary to that of the tokenizer that wrote the file (",
                        token + 1,
                        " or more), which also tells 16-bit from 32-bit tokens"));
}

}  // namespace

TokenStore TokenStore::open(const SourceOptions& options) {
  return {open_segments(options), options.vocabulary, options.tokenizer != "bytes"};
}

TokenStore::TokenStore(std::vector<TokenSegment> segments, int64_t vocabulary, bool has_ids)
    : segments_(std::move(segments)), starts_{0}, vocabulary_(vocabulary), has_ids_(has_ids) {
  for (const TokenSegment& segment : segments_) {
    starts_.push_back(starts_.back() + segment.size());
  }
}

int64_t TokenStore::read(int64_t first, std::span<int64_t> out) const {
  const int64_t count = static_cast<int64_t>(out.size());
  PENSTOCK_CHECK(first >= 0 && count <= size() && first <= size() - count,
                 "tokens ",
                 first,
                 " + ",
                 count,
                 " of ",
                 size());
  int64_t bytes = 0;
  // The last segment that starts at or before `first`.
  const auto after = std::upper_bound(starts_.begin(), starts_.end() - 1, first);
  for (size_t i = static_cast<size_t>(after - starts_.begin()) - 1; !out.empty(); ++i) {
    const int64_t inside = first - starts_[i];
    const int64_t left = segments_[i].size() - inside;
    const std::span<int64_t> part = out.first(std::min(out.size(), static_cast<size_t>(left)));
    bytes += segments_[i].read(inside, part);
    const auto bad = std::find_if(
        part.begin(), part.end(), [this](int64_t token) { return token >= vocabulary_; });
    if (bad != part.end()) {
      fail_token(segments_[i], inside + (bad - part.begin()), *bad, vocabulary_);
    }
    first += static_cast<int64_t>(part.size());
    out = out.subspan(part.size());
  }
  return bytes;
}

int64_t TokenStore::check(int64_t first, int64_t end) const {
  if (!has_ids_ || size() > kFullCheckTokens) {
    return 0;
  }
  std::vector<int64_t> buffer(size_t{1} << 14);
  const int64_t step = std::ssize(buffer);
  int64_t bytes = 0;
  for (; first < end; first += step) {
    const int64_t count = std::min(step, end - first);
    bytes += read(first, std::span(buffer).first(static_cast<size_t>(count)));
  }
  return bytes;
}

}  // namespace penstock::data
