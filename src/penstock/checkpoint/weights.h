// Weights from files of ours and of others.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace at {
class Tensor;
}
namespace penstock::comm {
class Group;
}
namespace penstock::model {
class Parameters;
struct StoredNames;
}  // namespace penstock::model

namespace penstock::checkpoint {

struct NamedTensor {
  std::string name;
  const at::Tensor* tensor;  // float32, contiguous
};

// Fills every tensor from the file; float32, float16 and bfloat16 are read. Throws CheckpointError
// when a tensor is missing or has another shape or type.
void load_tensors(const std::filesystem::path& file, const std::vector<NamedTensor>& tensors);

// The file that `path` stands for: a .safetensors file, or the model.safetensors of a checkpoint,
// of a run's latest one, or of a folder that Hugging Face saved.
std::filesystem::path find_weights_file(const std::filesystem::path& path);

// Takes the weights of `file`: of each parameter what this rank has of it, and its compute copies
// are brought up to date. Where a manifest lies beside the file, it is verified first. What `names`
// says may be missing or too much is so here: a prefix, a head that repeats the embedding where the
// model ties them, constants of old files; and so is what is with other ranks: `others`. All ranks
// call it.
void import_weights(const std::filesystem::path& file,
                    model::Parameters& parameters,
                    const model::StoredNames& names,
                    const std::vector<std::string>& others,
                    comm::Group& group);
// By a rank alone.
void import_weights(const std::filesystem::path& file,
                    model::Parameters& parameters,
                    const model::StoredNames& names,
                    const std::vector<std::string>& others = {});

}  // namespace penstock::checkpoint
