// Stretches of tensors in and out of safetensors files: what a rank has of a model's tensors,
// wherever the rest of them is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/checkpoint/manifest.h"
#include "penstock/checkpoint/safetensors.h"
#include "penstock/checkpoint/safetensors_writer.h"

namespace penstock::comm {
class Group;
}

namespace penstock::checkpoint {

struct TensorShard {
  std::string tensor;
  std::vector<int64_t> shape;  // of the whole tensor
  int64_t first = 0;           // element of the tensor
  // On any device, one dimension, without gaps; float32, but for layers' state.
  at::Tensor flat;
};

// Fills the file folder/name, which is there as create_safetensors() makes it: each rank with its
// shards, at the same time, and durably. All ranks call it, and have the answer. InternalError
// unless the shards of all ranks are all the file's data, each element once.
FileRecord write_shards(const std::filesystem::path& folder,
                        const std::string& name,
                        const SafetensorsLayout& layout,
                        const std::vector<TensorShard>& shards,
                        comm::Group& group);

// Throws CheckpointError unless the file has the tensor, with this shape.
const TensorEntry& require_tensor(const SafetensorsFile& file,
                                  const std::string& name,
                                  const std::vector<int64_t>& shape);

// Fills every shard; float32, float16 and bfloat16 are read, a few MiB at a time. Throws
// CheckpointError when a tensor is missing or has another shape or type.
void read_shards(const SafetensorsFile& file, const std::vector<TensorShard>& shards);
// The same for shards of any type, which the file must have as they are.
void read_exact_shards(const SafetensorsFile& file, const std::vector<TensorShard>& shards);

// As files name a tensor's type. InternalError for those that they do not have.
Dtype dtype_of(at::ScalarType type);

// Of a tensor that each replica has its own values of: "<tensor>.<replica>".
std::string replica_name(const std::string& tensor, int64_t replica);
// Makes them shards of that replica's tensors.
void name_by_replica(std::vector<TensorShard>& shards, int64_t replica);
// Fills a shard with the mean of what so many replicas have of its tensor.
void read_mean(const SafetensorsFile& file, const TensorShard& shard, int64_t replicas);

// Whether two tensors of the file have the same bytes.
bool have_same_data(const SafetensorsFile& file, const TensorEntry& a, const TensorEntry& b);

}  // namespace penstock::checkpoint
