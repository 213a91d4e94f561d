// Reading safetensors (https://github.com/huggingface/safetensors): 8 bytes with the length of a
// JSON header, the header, then the data of all tensors back to back. Little-endian throughout.
//
// Files come from anywhere, so every rule of the format is checked before a byte of data is looked
// at. Data need not be aligned to its dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "penstock/base/file.h"
#include "penstock/checkpoint/dtype.h"

namespace penstock::checkpoint {

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::F32;
  std::vector<int64_t> shape;
  size_t begin = 0;  // bytes into the data section
  size_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
  size_t data_begin = 0;  // bytes into the file
};

// The name that stands for the metadata among the tensors of a header.
inline constexpr const char* kMetadataKey = "__metadata__";
// Longer headers are refused, by this reader and by the format's own.
inline constexpr size_t kMaxHeaderBytes = 100'000'000;

// Throws CheckpointError, one line that says what is wrong and where, without a file name. On
// return the tensors cover the data section exactly, and each one's size is that of its shape and
// dtype.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file);

// A file whose header was read; its data is read as it is asked for. Errors begin with the path, or
// name it.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  const TensorEntry* find(const std::string& name) const;  // nullptr when there is none
  const std::filesystem::path& path() const { return file_.path(); }
  // Fills `out` with the bytes of a tensor of this file, from its byte `first` on.
  void read(const TensorEntry& entry, size_t first, std::span<std::byte> out) const;

 private:
  OffsetReader file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace penstock::checkpoint
