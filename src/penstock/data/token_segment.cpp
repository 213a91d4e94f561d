#include "penstock/data/token_segment.h"

#include <bit>
#include <cstring>
#include <utility>

#include "penstock/base/error.h"

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
    : storage_(std::move(file)), header_bytes_(header_bytes), token_bytes_(token_bytes) {
  PENSTOCK_CHECK(token_bytes == 1 || token_bytes == 2 || token_bytes == 4, token_bytes, " bytes");
}

TokenSegment::TokenSegment(std::vector<std::byte> text) : storage_(std::move(text)) {}

std::span<const std::byte> TokenSegment::bytes() const {
  if (const MappedFile* file = std::get_if<MappedFile>(&storage_)) {
    return file->bytes().subspan(header_bytes_);
  }
  return std::get<std::vector<std::byte>>(storage_);
}

int64_t TokenSegment::size() const {
  return static_cast<int64_t>(bytes().size() / token_bytes_);
}

void TokenSegment::read(int64_t first, std::span<int64_t> out) const {
  const std::byte* source = bytes().data() + static_cast<size_t>(first) * token_bytes_;
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
  const MappedFile* file = std::get_if<MappedFile>(&storage_);
  return file != nullptr ? file->path().string() : "joined text";
}

}  // namespace penstock::data
