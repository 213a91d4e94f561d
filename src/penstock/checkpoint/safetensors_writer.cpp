#include "penstock/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"

namespace penstock::checkpoint {

using nlohmann::json;

namespace {

constexpr size_t kAlignment = 8;  // of the data section: the largest element

std::string json_text(std::string_view text) {
  PENSTOCK_CHECK(is_valid_utf8(text), "text for a safetensors header is not valid UTF-8");
  return json(text).dump();
}

std::vector<TensorEntry> lay_out(const std::vector<TensorSpec>& specs) {
  std::vector<TensorEntry> layout;
  std::set<std::string> names;
  for (const TensorSpec& spec : specs) {
    PENSTOCK_CHECK(spec.name != kMetadataKey, "tensor named ", kMetadataKey);
    PENSTOCK_CHECK(names.insert(spec.name).second, "two tensors named ", in_quotes(spec.name));
    layout.push_back({spec.name, spec.dtype, spec.shape, 0, 0});
  }
  std::stable_sort(layout.begin(), layout.end(), [](const auto& a, const auto& b) {
    return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
  });
  size_t end = 0;
  for (TensorEntry& tensor : layout) {
    const std::optional<int64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    PENSTOCK_CHECK(bytes.has_value(), "bad shape of tensor ", in_quotes(tensor.name));
    tensor.begin = end;
    PENSTOCK_CHECK(!__builtin_add_overflow(end, static_cast<size_t>(*bytes), &end),
                   "too many bytes at tensor ",
                   in_quotes(tensor.name));
    tensor.end = end;
  }
  return layout;
}

// Put together by hand: the library's objects sort their keys, and people read headers in the order
// of the data.
std::string header_text(const std::vector<TensorEntry>& layout,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto begin_field = [&](std::string_view name) {
    text += text.back() == '{' ? "" : ",";
    text += json_text(name) + ":";
  };
  if (!metadata.empty()) {
    begin_field(kMetadataKey);
    text += "{";
    for (const auto& [key, value] : metadata) {
      begin_field(key);
      text += json_text(value);
    }
    text += "}";
  }
  for (const TensorEntry& tensor : layout) {
    begin_field(tensor.name);
    text += cat("{\"dtype\":\"",
                dtype_name(tensor.dtype),
                "\",\"shape\":",
                json(tensor.shape).dump(),
                ",\"data_offsets\":[",
                tensor.begin,
                ",",
                tensor.end,
                "]}");
  }
  text += "}";
  // The length before it takes 8 bytes, so the data is aligned when the header is.
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  PENSTOCK_CHECK(text.size() <= kMaxHeaderBytes, "safetensors header of ", text.size(), " bytes");
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorSpec>& specs,
                                     const std::map<std::string, std::string>& metadata)
    : layout_(lay_out(specs)), file_(path) {
  const std::string header = header_text(layout_, metadata);
  std::array<unsigned char, 8> length;
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<unsigned char>(uint64_t{header.size()} >> (8 * i));
  }
  file_.write(length.data(), length.size());
  file_.write(header);
}

void SafetensorsWriter::write(const std::string& name, const void* data, size_t bytes) {
  PENSTOCK_CHECK(num_written_ < layout_.size(), "tensor ", in_quotes(name), " after the last");
  const TensorEntry& expected = layout_[num_written_];
  PENSTOCK_CHECK(name == expected.name, in_quotes(name), " in place of ", in_quotes(expected.name));
  PENSTOCK_CHECK(bytes == expected.end - expected.begin, bytes, " bytes for ", in_quotes(name));
  file_.write(data, bytes);
  ++num_written_;
}

void SafetensorsWriter::finish() {
  PENSTOCK_CHECK(num_written_ == layout_.size(), num_written_, " of ", layout_.size(), " tensors");
  file_.finish();
}

}  // namespace penstock::checkpoint
