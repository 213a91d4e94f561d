// A run of tokens that lie side by side, in a mapped file or in memory: bytes, or unsigned 16-bit
// or 32-bit integers, little endian. A TokenStore is a list of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "penstock/base/file.h"

namespace penstock::data {

class TokenSegment {
 public:
  // The tokens of `file` after its first `header_bytes`, of 1, 2 or 4 bytes each.
  TokenSegment(MappedFile file, size_t header_bytes, size_t token_bytes);

  // One token per byte.
  explicit TokenSegment(std::vector<std::byte> text);

  int64_t size() const;
  int64_t token_bytes() const { return static_cast<int64_t>(token_bytes_); }

  // Tokens [first, first + out.size()).
  void read(int64_t first, std::span<int64_t> out) const;

  // For messages: the file, or a few words when there is none.
  std::string name() const;

 private:
  std::span<const std::byte> bytes() const;

  std::variant<MappedFile, std::vector<std::byte>> storage_;
  size_t header_bytes_ = 0;
  size_t token_bytes_ = 1;
};

}  // namespace penstock::data
