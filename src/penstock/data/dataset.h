// A part of the corpus, cut into windows of `context` tokens: what is trained on, or held out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "penstock/data/token_store.h"

namespace penstock::data {

class Dataset {
 public:
  // Tokens [begin, end) of the store, which must hold one sample: context + 1 tokens.
  Dataset(std::shared_ptr<const TokenStore> store, int64_t begin, int64_t end, int64_t context);

  int64_t samples() const { return (tokens() - 1) / context_; }
  int64_t context() const { return context_; }
  int64_t tokens() const { return end_ - begin_; }

  // Tells this data from other data, cheaply: the number of tokens and a checksum of the first and
  // the last few thousand. "338027 tokens, checksum 1a2b3c4d"
  std::string fingerprint() const;

  // Sample k covers tokens begin + k * context up to and with begin + (k + 1) * context. Inputs are
  // the first `context` of them, targets the last: each input's next token. Both spans hold
  // `context`. Safe from several threads at once.
  void read_sample(int64_t k, std::span<int64_t> inputs, std::span<int64_t> targets) const;

 private:
  std::shared_ptr<const TokenStore> store_;
  int64_t begin_;
  int64_t end_;
  int64_t context_;
};

struct Split {
  Dataset train;
  std::optional<Dataset> validation;  // none when nothing is held out
};

// Holds out the last `held_out` share (0 <= held_out < 1) of the tokens for validation. Throws
// ConfigError when a part is too short for one sample.
Split split_dataset(std::shared_ptr<const TokenStore> store, int64_t context, double held_out);

}  // namespace penstock::data
