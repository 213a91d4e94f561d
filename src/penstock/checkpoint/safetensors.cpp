#include "penstock/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string_view>
#include <tuple>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"
#include "penstock/checkpoint/strict_json.h"

namespace penstock::checkpoint {

using nlohmann::json;

namespace {

static_assert(std::endian::native == std::endian::little, "tensor data is read as it lies");

constexpr size_t kLengthBytes = 8;
constexpr int kHeaderDepth = 3;  // header, tensor, list

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw CheckpointError(cat(parts...));
}

template <typename... Parts>
[[noreturn]] void fail_tensor(const std::string& name, const Parts&... parts) {
  fail("tensor ", in_quotes(name), ": ", parts...);
}

std::string shape_text(std::span<const int64_t> shape) {
  constexpr size_t max_dims = 16;  // a hostile shape has millions
  std::vector<std::string> dims;
  for (size_t i = 0; i < std::min(shape.size(), max_dims); ++i) {
    dims.push_back(std::to_string(shape[i]));
  }
  if (shape.size() > max_dims) {
    dims.emplace_back("...");
  }
  return "[" + join(dims, ", ") + "]";
}

// 1. Where the header ends, in a file of so many bytes that begins with these.
size_t header_length(std::span<const std::byte> beginning, size_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    fail("file of ", file_bytes, " bytes is too short for a safetensors file");
  }
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) {
    length = (length << 8) | std::to_integer<uint64_t>(beginning[i]);
  }
  if (length > kMaxHeaderBytes) {
    fail("header length ", length, " is over the limit of ", kMaxHeaderBytes, " bytes");
  }
  if (length > file_bytes - kLengthBytes) {
    fail("header of ", length, " bytes reaches past the end of the file (", file_bytes, " bytes)");
  }
  return length;
}

// 2. What the header says.
std::map<std::string, std::string> read_metadata(const json& value) {
  if (!value.is_object()) {
    fail(kMetadataKey, " must be an object, not ", value.type_name());
  }
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      fail(
          kMetadataKey, ": the value of ", in_quotes(key), " must be text, not ", text.type_name());
    }
    metadata.emplace(key, text.get_ref<const std::string&>());
  }
  return metadata;
}

// A list of whole numbers from 0 to `most`.
template <typename Number>
std::vector<Number> read_numbers(const std::string& name, const char* field, const json& value) {
  constexpr auto most = static_cast<uint64_t>(std::numeric_limits<Number>::max());
  if (!value.is_array()) {
    fail_tensor(name, field, " must be a list, not ", value.type_name());
  }
  std::vector<Number> numbers;
  numbers.reserve(value.size());
  for (const json& number : value) {
    if (!number.is_number_unsigned()) {
      fail_tensor(name, field, " must hold whole numbers from 0 up");
    }
    if (number.get<uint64_t>() > most) {
      fail_tensor(name, field, " holds ", number.get<uint64_t>(), ", which is too large");
    }
    numbers.push_back(number.get<Number>());
  }
  return numbers;
}

TensorEntry read_tensor(const std::string& name, const json& value) {
  if (!value.is_object()) {
    fail_tensor(name, "must be an object, not ", value.type_name());
  }
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(field)) {
      fail_tensor(name, field, " is missing");
    }
  }
  for (const auto& [field, unused] : value.items()) {
    if (field != "dtype" && field != "shape" && field != "data_offsets") {
      fail_tensor(name, "unknown field ", in_quotes(field));
    }
  }
  const json& dtype_text = value["dtype"];
  if (!dtype_text.is_string()) {
    fail_tensor(name, "dtype must be text, not ", dtype_text.type_name());
  }
  const std::optional<Dtype> dtype = find_dtype(dtype_text.get_ref<const std::string&>());
  if (!dtype) {
    fail_tensor(name, "unknown dtype ", in_quotes(dtype_text.get_ref<const std::string&>()));
  }
  const auto offsets = read_numbers<size_t>(name, "data_offsets", value["data_offsets"]);
  if (offsets.size() != 2) {
    fail_tensor(name, "data_offsets must be two numbers, not ", offsets.size());
  }
  return {
      name, *dtype, read_numbers<int64_t>(name, "shape", value["shape"]), offsets[0], offsets[1]};
}

// 3. Whether it agrees with itself and with the data.
void check_size(const TensorEntry& tensor, size_t data_bytes) {
  if (tensor.begin > tensor.end) {
    fail_tensor(tensor.name, "data_offsets [", tensor.begin, ", ", tensor.end, "] run backwards");
  }
  if (tensor.end > data_bytes) {
    fail_tensor(tensor.name,
                "data ends at byte ",
                tensor.end,
                " of a data section of ",
                data_bytes,
                " bytes; is the file cut short?");
  }
  const std::optional<int64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
  if (!bytes) {
    fail_tensor(tensor.name, "shape ", shape_text(tensor.shape), " is too large");
  }
  if (static_cast<size_t>(*bytes) != tensor.end - tensor.begin) {
    fail_tensor(tensor.name,
                "shape ",
                shape_text(tensor.shape),
                " of ",
                dtype_name(tensor.dtype),
                " needs ",
                *bytes,
                " bytes, data_offsets give ",
                tensor.end - tensor.begin);
  }
}

// `tensors` in the order of their data.
void check_coverage(const std::vector<TensorEntry>& tensors, size_t data_bytes) {
  size_t covered = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != covered) {
      fail_tensor(tensor.name,
                  "data begins at byte ",
                  tensor.begin,
                  tensor.begin < covered
                      ? " and overlaps that of the tensor before it, which ends at "
                      : " and leaves a gap to the tensor before it, which ends at ",
                  covered);
    }
    covered = tensor.end;
  }
  if (covered != data_bytes) {
    fail("tensors end at byte ", covered, " of a data section of ", data_bytes, " bytes");
  }
}

SafetensorsHeader parse_header(std::string_view text, size_t file_bytes) {
  if (text.empty() || text.front() != '{') {
    fail("header does not begin with '{'");
  }
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + text.size();
  const size_t data_bytes = file_bytes - header.data_begin;

  json root;
  try {
    root = parse_strict_json(text, kHeaderDepth);
  } catch (const CheckpointError& error) {
    fail("header ", error.what());
  }
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadataKey) {
      header.metadata = read_metadata(value);
    } else {
      header.tensors.push_back(read_tensor(name, value));
      check_size(header.tensors.back(), data_bytes);
    }
  }
  // By the end too: an empty tensor comes before the one that begins where it lies.
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  check_coverage(header.tensors, data_bytes);
  return header;
}

SafetensorsHeader read_header(const OffsetReader& file) {
  const auto file_bytes = static_cast<size_t>(file.size());
  std::array<std::byte, kLengthBytes> beginning;
  file.read(0, std::span(beginning).first(std::min(kLengthBytes, file_bytes)));
  std::string text(header_length(beginning, file_bytes), ' ');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  return parse_header(text, file_bytes);
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> file) {
  const size_t length = header_length(file, file.size());
  const char* const text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  return parse_header({text, length}, file.size());
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  try {
    header_ = read_header(file_);
  } catch (const CheckpointError& error) {
    fail(path.string(), ": ", error.what());
  }
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    index_.emplace(header_.tensors[i].name, i);
  }
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsFile::read(const TensorEntry& entry, size_t first, std::span<std::byte> out) const {
  const size_t bytes = entry.end - entry.begin;
  PENSTOCK_CHECK(first <= bytes && out.size() <= bytes - first,
                 out.size(),
                 " bytes from byte ",
                 first,
                 " of tensor ",
                 in_quotes(entry.name));
  file_.read(static_cast<int64_t>(header_.data_begin + entry.begin + first), out);
}

}  // namespace penstock::checkpoint
