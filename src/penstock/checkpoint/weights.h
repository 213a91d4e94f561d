// Parameters in and out of safetensors files, by name.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "penstock/checkpoint/manifest.h"

namespace at {
class Tensor;
}
namespace penstock::model {
class Parameters;
}

namespace penstock::checkpoint {

struct NamedTensor {
  std::string name;
  const at::Tensor* tensor;  // float32, contiguous
};

// Writes and syncs folder/name, and says what was written.
FileRecord save_tensors(const std::filesystem::path& folder,
                        const std::string& name,
                        const std::vector<NamedTensor>& tensors);

// Fills every tensor from the file; float32, float16 and bfloat16 are read. Throws CheckpointError
// when a tensor is missing or has another shape or type.
void load_tensors(const std::filesystem::path& file, const std::vector<NamedTensor>& tensors);

// The weights at `path`: a checkpoint, a run's folder, a folder that Hugging Face saved, or a
// .safetensors file. Names may lack the prefix "transformer."; a tied head and the attention masks
// of old files are passed over. Compute copies are brought up to date.
void import_weights(const std::filesystem::path& path, model::Parameters& parameters);

}  // namespace penstock::checkpoint
