#include "penstock/checkpoint/weights.h"

#include <algorithm>
#include <optional>
#include <set>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/checkpoint/manifest.h"
#include "penstock/checkpoint/rank_shards.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/safetensors.h"
#include "penstock/checkpoint/tensor_shards.h"
#include "penstock/checkpoint/together.h"
#include "penstock/checkpoint/verify.h"
#include "penstock/comm/group.h"
#include "penstock/comm/local.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

namespace {

// For a model with a head of its own.
void require_head(const SafetensorsFile& file, const std::string& head) {
  if (file.find(head) == nullptr) {
    throw CheckpointError(cat(file.path().string(),
                              " has no tensor ",
                              head,
                              ": its head is the token embedding; set model.tied = true"));
  }
}

// For a model whose head is the embedding: one that is stored beside it must be the same matrix.
void require_tied(const SafetensorsFile& file,
                  const TensorEntry& embedding,
                  const std::string& head_name) {
  const TensorEntry* head = file.find(head_name);
  if (head != nullptr && !have_same_data(file, embedding, *head)) {
    throw CheckpointError(cat(file.path().string(),
                              ": ",
                              head_name,
                              " differs from the token embedding; set model.tied = false"));
  }
}

void fill_parameters(const SafetensorsFile& file,
                     model::Parameters& parameters,
                     const model::StoredNames& names,
                     const std::vector<std::string>& others) {
  const std::string& prefix = names.optional_prefix;
  const bool has_prefix = file.find(names.embedding) != nullptr;
  const auto stored_name = [&](const std::string& name) {
    return !has_prefix && name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  };
  const bool has_own_head = parameters.find(names.head) != nullptr ||
                            std::find(others.begin(), others.end(), names.head) != others.end();
  if (has_own_head) {
    require_head(file, names.head);
  }
  std::set<std::string> used;
  for (const model::Parameter& parameter : parameters.all()) {
    const std::string name = stored_name(parameter.spec.name);
    const TensorEntry& entry = require_tensor(file, name, parameter.spec.shape);
    if (parameter.spec.name == names.embedding && !has_own_head) {
      require_tied(file, entry, names.head);
    }
    used.insert(name);
  }
  for (const std::string& name : others) {
    used.insert(stored_name(name));
  }
  for (const TensorEntry& entry : file.header().tensors) {
    const bool is_passed_over = names.is_passed_over != nullptr && names.is_passed_over(entry.name);
    const bool is_expected =
        used.contains(entry.name) || entry.name == names.head || is_passed_over;
    if (!is_expected) {
      throw CheckpointError(cat(file.path().string(),
                                " has a tensor ",
                                entry.name,
                                " that this model lacks: it is another model's"));
    }
  }
  std::vector<TensorShard> shards = weight_shards(parameters);
  for (TensorShard& shard : shards) {
    shard.tensor = stored_name(shard.tensor);
  }
  read_shards(file, shards);
  parameters.refresh_compute();
}

}  // namespace

fs::path find_weights_file(const fs::path& path) {
  if (!fs::exists(path)) {
    throw CheckpointError(cat("model.weights = \"", path.string(), "\" does not exist"));
  }
  if (!fs::is_directory(path)) {
    return path;
  }
  const fs::path here = path / "model.safetensors";
  if (fs::exists(here)) {
    return here;
  }
  if (list_steps(path).empty()) {
    throw CheckpointError(cat("model.weights = \"",
                              path.string(),
                              "\" has no model.safetensors and no checkpoint; a sharded or pickled "
                              "model must be saved as one safetensors file first"));
  }
  return resolve_checkpoint(path) / "model.safetensors";
}

void load_tensors(const fs::path& file, const std::vector<NamedTensor>& tensors) {
  std::vector<TensorShard> shards;
  for (const NamedTensor& named : tensors) {
    shards.push_back({named.name, named.tensor->sizes().vec(), 0, named.tensor->view({-1})});
  }
  read_shards(SafetensorsFile(file), shards);
}

void import_weights(const fs::path& file,
                    model::Parameters& parameters,
                    const model::StoredNames& names,
                    const std::vector<std::string>& others,
                    comm::Group& group) {
  const comm::What what = [] { return std::string("the end of reading weights"); };
  std::optional<Manifest> manifest;
  run_together(group, what, [&] {
    if (is_whole_checkpoint(file.parent_path())) {
      manifest = read_manifest(file.parent_path());
    }
  });
  if (manifest) {
    verify_files(file.parent_path(), *manifest, group);
  }
  run_together(
      group, what, [&] { fill_parameters(SafetensorsFile(file), parameters, names, others); });
}

void import_weights(const fs::path& file,
                    model::Parameters& parameters,
                    const model::StoredNames& names,
                    const std::vector<std::string>& others) {
  comm::run_local(
      1, [&](comm::Group& alone) { import_weights(file, parameters, names, others, alone); });
}

}  // namespace penstock::checkpoint
