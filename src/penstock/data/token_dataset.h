// A part of the corpus, cut into windows of `context` tokens.
//
// Sample k covers tokens begin + k * context up to and with begin + (k + 1) * context. "inputs" are
// the first `context` of them, "targets" the last: each input's next token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/data/dataset.h"
#include "penstock/data/token_store.h"

namespace penstock::data {

class TokenDataset final : public Dataset {
 public:
  // Tokens [begin, end) of the store, which must hold one sample: context + 1 tokens.
  TokenDataset(std::shared_ptr<const TokenStore> store,
               int64_t begin,
               int64_t end,
               int64_t context);

  int64_t context() const { return context_; }
  int64_t tokens() const { return end_ - begin_; }

  int64_t samples() const override { return (tokens() - 1) / context_; }
  const std::vector<Field>& fields() const override { return fields_; }
  int64_t read(int64_t sample, size_t field, std::span<std::byte> into) const override;
  int64_t check(int64_t part, int64_t parts) const override;

  // The number of tokens and a checksum of the first and the last few thousand. "338027 tokens,
  // checksum 1a2b3c4d"
  std::string fingerprint() const override;
  std::string size_text() const override;

 private:
  std::shared_ptr<const TokenStore> store_;
  int64_t begin_;
  int64_t end_;
  int64_t context_;
  std::vector<Field> fields_;
};

// Holds out the last `held_out` share (0 <= held_out < 1) of the tokens for validation. Throws
// ConfigError when a part is too short for one sample.
Split split_tokens(std::shared_ptr<const TokenStore> store, int64_t context, double held_out);

}  // namespace penstock::data
