#include "penstock/data/token_dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/units.h"

namespace penstock::data {

TokenDataset::TokenDataset(std::shared_ptr<const TokenStore> store,
                           int64_t begin,
                           int64_t end,
                           int64_t context)
    : store_(std::move(store)),
      begin_(begin),
      end_(end),
      context_(context),
      fields_{{"inputs", FieldType::Int64, {context}}, {"targets", FieldType::Int64, {context}}} {
  PENSTOCK_CHECK(context_ > 0, "context ", context_);
  PENSTOCK_CHECK(begin_ >= 0 && end_ <= store_->size(), "tokens ", begin_, " to ", end_);
  PENSTOCK_CHECK(tokens() > context_, tokens(), " tokens, context ", context_);
}

int64_t TokenDataset::read(int64_t sample, size_t field, std::span<std::byte> into) const {
  check_read(sample, field, into);
  // Targets, the second field, are one token further on.
  int64_t next = begin_ + sample * context_ + static_cast<int64_t>(field);
  // Piece by piece, as `into` need not be aligned for tokens.
  std::array<int64_t, 512> buffer;
  int64_t bytes = 0;
  while (!into.empty()) {
    const std::span<int64_t> part =
        std::span(buffer).first(std::min(buffer.size(), into.size() / sizeof(int64_t)));
    bytes += store_->read(next, part);
    std::memcpy(into.data(), part.data(), part.size_bytes());
    into = into.subspan(part.size_bytes());
    next += static_cast<int64_t>(part.size());
  }
  return bytes;
}

int64_t TokenDataset::check(int64_t part, int64_t parts) const {
  return store_->check(begin_ + tokens() * part / parts, begin_ + tokens() * (part + 1) / parts);
}

std::string TokenDataset::fingerprint() const {
  constexpr int64_t most = 4096;
  const int64_t count = std::min(most, tokens());
  std::vector<int64_t> sample(static_cast<size_t>(count));
  uint32_t checksum = 0;
  for (const int64_t first : {begin_, end_ - count}) {
    store_->read(first, sample);
    checksum = crc32c(sample.data(), sample.size() * sizeof(int64_t), checksum);
  }
  char text[64];
  std::snprintf(
      text, sizeof text, "%lld tokens, checksum %08x", static_cast<long long>(tokens()), checksum);
  return text;
}

std::string TokenDataset::size_text() const {
  return cat(format_count(tokens()), " tokens");
}

Split split_tokens(std::shared_ptr<const TokenStore> store, int64_t context, double held_out) {
  PENSTOCK_CHECK(context > 0, "context ", context);
  PENSTOCK_CHECK(held_out >= 0 && held_out < 1, "held out ", held_out);
  const int64_t all = store->size();
  const int64_t validation = std::llround(held_out * static_cast<double>(all));
  const int64_t train = all - validation;
  if (train <= context) {
    throw ConfigError(cat("model.context = ",
                          context,
                          train < context ? " is longer than" : " is as long as",
                          " the training part of the corpus (",
                          train,
                          " tokens, where one sample takes ",
                          context + 1,
                          "); shorten model.context or give more text in data.path"));
  }
  if (held_out > 0 && validation <= context) {
    throw ConfigError(cat("data.split = ",
                          format_number(held_out),
                          " holds out ",
                          validation,
                          " of ",
                          all,
                          " tokens, too few for one sample of model.context = ",
                          context,
                          "; raise data.split, shorten model.context, give more text in data.path, "
                          "or set data.split = 0 to train without validation"));
  }
  Split split;
  split.train = std::make_shared<const TokenDataset>(store, 0, train, context);
  if (validation > 0) {
    split.validation = std::make_shared<const TokenDataset>(std::move(store), train, all, context);
  }
  return split;
}

}  // namespace penstock::data
