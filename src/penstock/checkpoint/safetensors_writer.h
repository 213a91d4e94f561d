// Writing safetensors, one tensor after the other, so that no more than one is in host memory at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "penstock/base/file.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock::checkpoint {

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::F32;
  std::vector<int64_t> shape;
};

// Names must be distinct, and names and metadata valid UTF-8. Failures of the disk are FileErrors.
class SafetensorsWriter {
 public:
  // Writes the header. Tensors keep the given order among those of one element size; larger
  // elements come first, so that each tensor is aligned to its dtype.
  SafetensorsWriter(const std::filesystem::path& path,
                    const std::vector<TensorSpec>& specs,
                    const std::map<std::string, std::string>& metadata = {});

  // The order in which write() expects the tensors.
  const std::vector<TensorEntry>& layout() const { return layout_; }

  void write(const std::string& name, const void* data, size_t bytes);
  void finish();  // after the last tensor: makes the file durable

  // Of the whole file, once finished.
  int64_t size() const { return file_.size(); }
  uint32_t checksum() const { return file_.checksum(); }

 private:
  std::vector<TensorEntry> layout_;
  size_t num_written_ = 0;
  FileWriter file_;
};

}  // namespace penstock::checkpoint
