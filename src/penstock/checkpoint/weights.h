// Parameters in and out of safetensors files, by name.
#pragma once

#include <filesystem>
#include <functional>
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

// A tensor to be saved, which may be with another rank.
struct TensorSource {
  std::string name;
  std::vector<int64_t> shape;
  std::function<at::Tensor()> fetch;  // float32, contiguous; called once, in the order of the list
};

std::vector<TensorSource> sources_of(const std::vector<NamedTensor>& tensors);

// Writes and syncs folder/name, and says what was written.
FileRecord save_tensors(const std::filesystem::path& folder,
                        const std::string& name,
                        const std::vector<TensorSource>& tensors);

// Fills every tensor from the file; float32, float16 and bfloat16 are read. Throws CheckpointError
// when a tensor is missing or has another shape or type.
void load_tensors(const std::filesystem::path& file, const std::vector<NamedTensor>& tensors);

// The file that `path` stands for: a .safetensors file, or the model.safetensors of a checkpoint, of
// a run's latest one, or of a folder that Hugging Face saved.
std::filesystem::path find_weights_file(const std::filesystem::path& path);

// Takes the weights of `file`. Where a manifest lies beside it, it is verified first. Names may lack
// the prefix "transformer."; the attention masks of old files are passed over, a head that repeats the
// embedding where the model ties them, and what is with other ranks: `others`. Compute copies are
// brought up to date.
void import_weights(const std::filesystem::path& file,
                    model::Parameters& parameters,
                    const std::vector<std::string>& others = {});

}  // namespace penstock::checkpoint
