#include "penstock/checkpoint/weights.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/checkpoint/manifest.h"
#include "penstock/checkpoint/pieces.h"
#include "penstock/checkpoint/rank_pieces.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/safetensors.h"
#include "penstock/checkpoint/together.h"
#include "penstock/checkpoint/verify.h"
#include "penstock/comm/group.h"
#include "penstock/comm/local.h"
#include "penstock/model/parameters.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "transformer.wte.weight";

bool is_attention_mask(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

// For a model with a head of its own.
void require_head(const SafetensorsFile& file) {
  if (file.find(kHead) == nullptr) {
    throw CheckpointError(cat(file.path().string(),
                              " has no tensor ",
                              kHead,
                              ": its head is the token embedding; set model.tied = true"));
  }
}

// For a model whose head is the embedding: one that is stored beside it must be the same matrix.
void require_tied(const SafetensorsFile& file, const TensorEntry& embedding) {
  const TensorEntry* head = file.find(kHead);
  if (head != nullptr && !have_same_data(file, embedding, *head)) {
    throw CheckpointError(cat(file.path().string(),
                              ": ",
                              kHead,
                              " differs from the token embedding; set model.tied = false"));
  }
}

void fill_parameters(const SafetensorsFile& file,
                     model::Parameters& parameters,
                     const std::vector<std::string>& others) {
  const bool has_prefix = file.find(kEmbedding) != nullptr;
  const auto stored_name = [&](const std::string& name) {
    return !has_prefix && name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  };
  const bool has_own_head = parameters.find(kHead) != nullptr ||
                            std::find(others.begin(), others.end(), kHead) != others.end();
  if (has_own_head) {
    require_head(file);
  }
  std::set<std::string> used;
  for (const model::Parameter& parameter : parameters.all()) {
    const std::string name = stored_name(parameter.spec.name);
    const TensorEntry& entry = require_tensor(file, name, parameter.spec.shape);
    if (parameter.spec.name == kEmbedding && !has_own_head) {
      require_tied(file, entry);
    }
    used.insert(name);
  }
  for (const std::string& name : others) {
    used.insert(stored_name(name));
  }
  for (const TensorEntry& entry : file.header().tensors) {
    const bool is_expected =
        used.contains(entry.name) || entry.name == kHead || is_attention_mask(entry.name);
    if (!is_expected) {
      throw CheckpointError(cat(file.path().string(),
                                " has a tensor ",
                                entry.name,
                                " that this model lacks: it is another model's"));
    }
  }
  std::vector<Piece> pieces = weight_pieces(parameters);
  for (Piece& piece : pieces) {
    piece.tensor = stored_name(piece.tensor);
  }
  read_pieces(file, pieces);
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
  std::vector<Piece> pieces;
  for (const NamedTensor& named : tensors) {
    pieces.push_back({named.name, named.tensor->sizes().vec(), 0, named.tensor->view({-1})});
  }
  read_pieces(SafetensorsFile(file), pieces);
}

void import_weights(const fs::path& file,
                    model::Parameters& parameters,
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
  run_together(group, what, [&] { fill_parameters(SafetensorsFile(file), parameters, others); });
}

void import_weights(const fs::path& file,
                    model::Parameters& parameters,
                    const std::vector<std::string>& others) {
  comm::run_local(1, [&](comm::Group& alone) { import_weights(file, parameters, others, alone); });
}

}  // namespace penstock::checkpoint
