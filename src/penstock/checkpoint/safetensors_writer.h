// Writing safetensors. All writers of a file know what it holds, so each can put its part in place
// while the others do the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "penstock/base/file.h"
#include "penstock/checkpoint/safetensors.h"
#include "penstock/checkpoint/stretches.h"

namespace penstock::checkpoint {

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::F32;
  std::vector<int64_t> shape;
};

// Where everything of a file lies. Names must be distinct, and names and metadata valid UTF-8.
// Tensors keep the given order among those of one element size; larger elements come first, so that
// each tensor is aligned to its dtype.
class SafetensorsLayout {
 public:
  explicit SafetensorsLayout(const std::vector<TensorSpec>& specs,
                             const std::map<std::string, std::string>& metadata = {});

  const std::vector<TensorEntry>& tensors() const {
    return tensors_;
  }                                                        // in the order of their data
  const TensorEntry& find(const std::string& name) const;  // InternalError when there is none
  const std::string& head() const { return head_; }        // all that comes before the data
  int64_t file_bytes() const;

 private:
  std::vector<TensorEntry> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::string head_;
};

// Makes the file in its full size, without the data. Failures of the disk are FileErrors.
void create_safetensors(const std::filesystem::path& path, const SafetensorsLayout& layout);

// Puts data into a file that was created; one of several that do. Failures of the disk are
// FileErrors.
class SafetensorsWriter {
 public:
  // The layout must live as long.
  SafetensorsWriter(const std::filesystem::path& path, const SafetensorsLayout& layout);

  // Bytes of a tensor, from byte `first` of it on.
  void write(const TensorEntry& tensor, size_t first, const void* data, size_t bytes);
  void finish();  // makes the file durable

  // What this writer has written, summed.
  const std::vector<Stretch>& written() const { return written_; }

 private:
  const SafetensorsLayout& layout_;
  OffsetWriter file_;
  std::vector<Stretch> written_;
};

// Of the whole file, from what all writers have written. InternalError unless that is all the data,
// each byte once.
uint32_t checksum_of_file(const SafetensorsLayout& layout,
                          std::vector<Stretch> written,
                          const std::filesystem::path& path);

}  // namespace penstock::checkpoint
