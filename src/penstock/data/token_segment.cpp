#include "penstock/data/token_segment.h"

#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/data/tokenizer.h"

namespace penstock::data {

static_assert(std::endian::native == std::endian::little, "token files are little endian");

namespace {

template <typename Token>
void widen(const std::byte* source, std::span<int64_t> out) {
  for (int64_t& token : out) {
    Token narrow;
    std::memcpy(&narrow, source, sizeof(Token));
    token = narrow;
    source += sizeof(Token);
  }
}

}  // namespace

TokenSegment::TokenSegment(MappedFile file, size_t header_bytes, size_t token_bytes)
    : file_(std::move(file)), header_bytes_(header_bytes), token_bytes_(token_bytes) {
  PENSTOCK_CHECK(token_bytes == 1 || token_bytes == 2 || token_bytes == 4, token_bytes, " bytes");
  const size_t bytes = std::get<MappedFile>(file_).bytes().size() - header_bytes;
  in_file_ = static_cast<int64_t>(bytes / token_bytes);
}

TokenSegment::TokenSegment(std::filesystem::path path, int64_t bytes)
    : file_(std::move(path)), in_file_(bytes) {}

int64_t TokenSegment::read(int64_t first, std::span<int64_t> out) const {
  if (ends_document_ && first + std::ssize(out) == size() && !out.empty()) {
    out.back() = kEndOfDocument;
    out = out.first(out.size() - 1);
  }
  if (!out.empty()) {
    read_file(first, out);
  }
  return std::ssize(out) * static_cast<int64_t>(token_bytes_);
}

void TokenSegment::read_file(int64_t first, std::span<int64_t> out) const {
  if (const auto* path = std::get_if<std::filesystem::path>(&file_)) {
    std::vector<std::byte> bytes(out.size());
    OffsetReader(*path).read(first, bytes);
    return widen<uint8_t>(bytes.data(), out);
  }
  const std::byte* source = std::get<MappedFile>(file_).bytes().data() + header_bytes_ +
                            static_cast<size_t>(first) * token_bytes_;
  switch (token_bytes_) {
    case 1:
      return widen<uint8_t>(source, out);
    case 2:
      return widen<uint16_t>(source, out);
    default:
      return widen<uint32_t>(source, out);
  }
}

std::string TokenSegment::name() const {
  const MappedFile* mapped = std::get_if<MappedFile>(&file_);
  return (mapped != nullptr ? mapped->path() : std::get<std::filesystem::path>(file_)).string();
}

}  // namespace penstock::data
