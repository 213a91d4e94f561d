// Safetensors files put together by hand, right or wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace penstock::test {

// Any length, header and data, whether or not they fit together.
inline std::string safetensors_bytes(uint64_t length, std::string_view header, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) {
    file += static_cast<char>(length >> (8 * i));
  }
  file += header;
  file.append(data_bytes, 'd');
  return file;
}

inline std::string safetensors_bytes(std::string_view header, size_t data_bytes) {
  return safetensors_bytes(header.size(), header, data_bytes);
}

inline std::span<const std::byte> as_byte_span(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace penstock::test
