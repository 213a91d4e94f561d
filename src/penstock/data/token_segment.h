// A run of tokens that lie side by side in a file: bytes, or unsigned 16-bit or 32-bit integers,
// little endian. A TokenStore is a list of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <variant>

#include "penstock/base/file.h"

namespace penstock::data {

class TokenSegment {
 public:
  // The tokens of `file` after its first `header_bytes`, of 1, 2 or 4 bytes each.
  TokenSegment(MappedFile file, size_t header_bytes, size_t token_bytes);

  // A file that is opened anew for each read: a folder may hold more files than can be mapped. One
  // token per byte.
  TokenSegment(std::filesystem::path path, int64_t bytes);

  // Another document follows: one more token, which is in no file, says so.
  void end_document() { ends_document_ = true; }

  int64_t size() const { return in_file_ + (ends_document_ ? 1 : 0); }

  // Tokens [first, first + out.size()). Returns how many bytes of the file they take. FileError where
  // the file has become shorter.
  int64_t read(int64_t first, std::span<int64_t> out) const;

  std::string name() const;  // the file

 private:
  void read_file(int64_t first, std::span<int64_t> out) const;

  std::variant<MappedFile, std::filesystem::path> file_;
  size_t header_bytes_ = 0;
  size_t token_bytes_ = 1;
  int64_t in_file_ = 0;  // tokens
  bool ends_document_ = false;
};

}  // namespace penstock::data
