#include "penstock/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/quote.h"

namespace penstock::checkpoint {

using nlohmann::json;

namespace {

constexpr size_t kLengthBytes = 8;  // with the header's length
constexpr size_t kAlignment = 8;    // of the data section: the largest element

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

SafetensorsLayout::SafetensorsLayout(const std::vector<TensorSpec>& specs,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(lay_out(specs)) {
  const std::string text = header_text(tensors_, metadata);
  for (size_t i = 0; i < kLengthBytes; ++i) {
    head_ += static_cast<char>(static_cast<unsigned char>(uint64_t{text.size()} >> (8 * i)));
  }
  head_ += text;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    index_.emplace(tensors_[i].name, i);
  }
}

const TensorEntry& SafetensorsLayout::find(const std::string& name) const {
  const auto found = index_.find(name);
  PENSTOCK_CHECK(found != index_.end(), "no tensor ", in_quotes(name));
  return tensors_[found->second];
}

int64_t SafetensorsLayout::file_bytes() const {
  return static_cast<int64_t>(head_.size() + (tensors_.empty() ? 0 : tensors_.back().end));
}

void create_safetensors(const std::filesystem::path& path, const SafetensorsLayout& layout) {
  OffsetWriter file = OffsetWriter::create(path, layout.file_bytes());
  file.write(0, layout.head().data(), layout.head().size());
  file.finish();
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const SafetensorsLayout& layout)
    : layout_(layout), file_(OffsetWriter::open(path)) {}

void SafetensorsWriter::write(const TensorEntry& tensor,
                              size_t first,
                              const void* data,
                              size_t bytes) {
  const size_t room = tensor.end - tensor.begin;
  PENSTOCK_CHECK(first <= room && bytes <= room - first,
                 bytes,
                 " bytes at byte ",
                 first,
                 " of ",
                 in_quotes(tensor.name));
  const auto begin = static_cast<int64_t>(layout_.head().size() + tensor.begin + first);
  file_.write(begin, data, bytes);
  append(written_, {begin, static_cast<int64_t>(bytes), crc32c(data, bytes)});
}

void SafetensorsWriter::finish() {
  file_.finish();
}

uint32_t checksum_of_file(const SafetensorsLayout& layout,
                          std::vector<Stretch> written,
                          const std::filesystem::path& path) {
  const std::string& head = layout.head();
  written.push_back({0, static_cast<int64_t>(head.size()), crc32c(head.data(), head.size())});
  return checksum_of_all(std::move(written), layout.file_bytes(), path.string());
}

}  // namespace penstock::checkpoint
