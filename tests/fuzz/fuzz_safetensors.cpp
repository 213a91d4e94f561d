// libFuzzer target: whatever the bytes, the parser of safetensors answers with a CheckpointError or
// with tensors that cover the file exactly. Seeds: tests/fuzz/seeds/safetensors.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "penstock/base/error.h"
#include "penstock/checkpoint/safetensors.h"

namespace {

using penstock::checkpoint::parse_safetensors;
using penstock::checkpoint::SafetensorsHeader;
using penstock::checkpoint::TensorEntry;

void parse_and_read(std::span<const uint8_t> file) {
  SafetensorsHeader header;
  try {
    header = parse_safetensors(std::as_bytes(file));
  } catch (const penstock::CheckpointError&) {
    return;
  }
  // The address sanitizer sees reads past the end.
  size_t num_read = header.data_begin;
  volatile uint8_t last = 0;
  for (const TensorEntry& tensor : header.tensors) {
    for (size_t i = tensor.begin; i < tensor.end; ++i) {
      last = file.data()[header.data_begin + i];
      ++num_read;
    }
  }
  static_cast<void>(last);
  if (num_read != file.size()) {
    __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  parse_and_read({data, size});
  // Once more with the length of what looks like the header: mutations seldom hit it, and nothing
  // behind the length would be tried.
  std::string file(reinterpret_cast<const char*>(data), size);
  const size_t brace = file.rfind('}');
  if (brace != std::string::npos && brace >= 8) {
    const size_t data_begin = std::min(file.find_first_not_of(' ', brace + 1), file.size());
    const uint64_t length = data_begin - 8;
    for (size_t i = 0; i < 8; ++i) {
      file[i] = static_cast<char>(length >> (8 * i));
    }
    parse_and_read({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
  }
  return 0;
}
