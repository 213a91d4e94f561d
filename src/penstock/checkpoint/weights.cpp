#include "penstock/checkpoint/weights.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "penstock/base/error.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/safetensors.h"
#include "penstock/checkpoint/safetensors_writer.h"
#include "penstock/model/parameters.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += cat(i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

at::ScalarType tensor_type(const TensorEntry& entry, const fs::path& file) {
  switch (entry.dtype) {
    case Dtype::F32:
      return at::kFloat;
    case Dtype::F16:
      return at::kHalf;
    case Dtype::BF16:
      return at::kBFloat16;
    default:
      throw CheckpointError(cat(file.string(),
                                ": tensor ",
                                entry.name,
                                " has type ",
                                dtype_name(entry.dtype),
                                "; weights are read from F32, F16 or BF16"));
  }
}

void copy_entry(const SafetensorsFile& source,
                const TensorEntry& entry,
                const fs::path& file,
                const at::Tensor& target) {
  if (entry.shape != target.sizes().vec()) {
    throw CheckpointError(cat(file.string(),
                              ": tensor ",
                              entry.name,
                              " has shape ",
                              shape_text(entry.shape),
                              "; this model needs ",
                              shape_text(target.sizes().vec()),
                              ": it is another model's"));
  }
  const std::span<const std::byte> bytes = source.data(entry);
  const at::ScalarType type = tensor_type(entry, file);
  if (type == at::kFloat && target.is_cpu()) {
    std::memcpy(target.data_ptr(), bytes.data(), bytes.size());
    return;
  }
  // Straight from the file: a copy of it could break a memory limit that the training keeps.
  void* data = const_cast<std::byte*>(bytes.data());
  at::Tensor(target).copy_(at::from_blob(data, target.sizes(), type));
}

const TensorEntry& require(const SafetensorsFile& source,
                           const std::string& name,
                           const fs::path& file) {
  const TensorEntry* entry = source.find(name);
  if (entry == nullptr) {
    throw CheckpointError(
        cat(file.string(), " has no tensor ", name, "; it is incomplete or of another model"));
  }
  return *entry;
}

constexpr std::string_view kPrefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "transformer.wte.weight";

bool is_attention_mask(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

// For a model with a head of its own.
void require_head(const SafetensorsFile& source, const fs::path& file) {
  if (source.find(kHead) == nullptr) {
    throw CheckpointError(cat(file.string(),
                              " has no tensor ",
                              kHead,
                              ": its head is the token embedding; set model.tied = true"));
  }
}

// For a model whose head is the embedding: one that is stored beside it must be the same matrix.
void require_tied(const SafetensorsFile& source,
                  const TensorEntry& embedding,
                  const fs::path& file) {
  const TensorEntry* head = source.find(kHead);
  if (head == nullptr) {
    return;
  }
  const auto a = source.data(embedding);
  const auto b = source.data(*head);
  if (a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size()) != 0) {
    throw CheckpointError(cat(
        file.string(), ": ", kHead, " differs from the token embedding; set model.tied = false"));
  }
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

std::vector<TensorSource> sources_of(const std::vector<NamedTensor>& tensors) {
  std::vector<TensorSource> sources;
  for (const NamedTensor& named : tensors) {
    sources.push_back(
        {named.name, named.tensor->sizes().vec(), [tensor = *named.tensor] { return tensor; }});
  }
  return sources;
}

FileRecord save_tensors(const fs::path& folder,
                        const std::string& name,
                        const std::vector<TensorSource>& tensors) {
  std::vector<TensorSpec> specs;
  for (const TensorSource& source : tensors) {
    specs.push_back({source.name, Dtype::F32, source.shape});
  }
  SafetensorsWriter writer(folder / name, specs, {{"format", "pt"}});
  for (const TensorSource& source : tensors) {
    const at::Tensor here = source.fetch().cpu();  // itself, where it is on the CPU
    writer.write(source.name, here.const_data_ptr(), here.nbytes());
  }
  writer.finish();
  return {name, writer.size(), writer.checksum()};
}

void load_tensors(const fs::path& file, const std::vector<NamedTensor>& tensors) {
  const c10::NoGradGuard no_grad;
  const SafetensorsFile source(file);
  for (const NamedTensor& named : tensors) {
    copy_entry(source, require(source, named.name, file), file, *named.tensor);
  }
}

void import_weights(const fs::path& file,
                    model::Parameters& parameters,
                    const std::vector<std::string>& others) {
  const c10::NoGradGuard no_grad;
  if (is_whole_checkpoint(file.parent_path())) {
    verify_files(file.parent_path(), read_manifest(file.parent_path()));
  }
  const SafetensorsFile source(file);
  const bool has_prefix = source.find(kEmbedding) != nullptr;
  const auto stored_name = [&](const std::string& name) {
    return !has_prefix && name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  };
  const bool has_own_head = parameters.find(kHead) != nullptr ||
                            std::find(others.begin(), others.end(), kHead) != others.end();
  if (has_own_head) {
    require_head(source, file);
  }
  std::set<std::string> used;
  for (const model::Parameter& parameter : parameters.all()) {
    const std::string name = stored_name(parameter.spec.name);
    const TensorEntry& entry = require(source, name, file);
    if (parameter.spec.name == kEmbedding && !has_own_head) {
      require_tied(source, entry, file);
    }
    copy_entry(source, entry, file, parameter.weight);
    used.insert(name);
  }
  for (const std::string& name : others) {
    used.insert(stored_name(name));
  }
  for (const TensorEntry& entry : source.header().tensors) {
    const bool is_expected =
        used.contains(entry.name) || entry.name == kHead || is_attention_mask(entry.name);
    if (!is_expected) {
      throw CheckpointError(cat(file.string(),
                                " has a tensor ",
                                entry.name,
                                " that this model lacks: it is another model's"));
    }
  }
  parameters.refresh_compute();
}

}  // namespace penstock::checkpoint
