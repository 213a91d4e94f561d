#include "penstock/checkpoint/checkpoint.h"

#include <set>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <torch/headeronly/version.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/log.h"
#include "penstock/base/version.h"
#include "penstock/checkpoint/model_config.h"
#include "penstock/checkpoint/pending_checkpoint.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/strict_json.h"
#include "penstock/checkpoint/weights.h"
#include "penstock/config/options.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWeightsName = "model.safetensors";
constexpr const char* kOptimizerName = "optimizer.safetensors";
constexpr const char* kStateName = "state.json";
constexpr const char* kRecipeName = "recipe.toml";
constexpr const char* kConfigName = "config.json";

FileRecord save_text(const fs::path& folder, const std::string& name, const std::string& text) {
  FileWriter file(folder / name);
  file.write(text);
  file.finish();
  return {name, file.size(), file.checksum()};
}

std::vector<NamedTensor> weight_tensors(const model::Parameters& parameters) {
  std::vector<NamedTensor> tensors;
  for (const model::Parameter& parameter : parameters.all()) {
    tensors.push_back({parameter.spec.name, &parameter.weight});
  }
  return tensors;
}

// The optimizer's flat buffers as one tensor per parameter and buffer, so that a checkpoint does not
// depend on how the buffers were laid out.
struct OptimizerTensors {
  OptimizerTensors(const model::Parameters& parameters, const optim::Optimizer& optimizer) {
    for (const model::Parameter& parameter : parameters.all()) {
      for (const optim::StateBuffer& buffer : optimizer.state()) {
        names.push_back(cat(parameter.spec.name, ".", buffer.name));
        views.push_back(buffer.flat.narrow(0, parameter.offset, parameter.spec.count())
                            .view(parameter.spec.shape));
      }
    }
  }

  std::vector<NamedTensor> named() const {
    std::vector<NamedTensor> tensors;
    for (size_t i = 0; i < names.size(); ++i) {
      tensors.push_back({names[i], &views[i]});
    }
    return tensors;
  }

  std::vector<std::string> names;
  std::vector<at::Tensor> views;
};

std::string state_text(const config::Recipe& recipe,
                       const optim::Optimizer& optimizer,
                       const TrainState& state) {
  const nlohmann::ordered_json json{
      {"step", state.step},
      {"samples_seen", state.samples_seen},
      {"data", state.data},
      {"optimizer", {{"kind", recipe.train.optimizer}, {"steps", optimizer.steps_done()}}},
      {"random", {{"generator", "philox4x32-10"}, {"seed", recipe.train.seed}}}};
  return json.dump(2) + "\n";
}

int64_t require_count(const nlohmann::json& json, const char* key, const fs::path& file) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer() || found->get<int64_t>() < 0) {
    throw CheckpointError(cat(file.string(), " has no count \"", key, "\""));
  }
  return found->get<int64_t>();
}

struct StoredState {
  TrainState state;
  int64_t optimizer_steps = 0;
};

StoredState read_state(const fs::path& folder) {
  const fs::path file = folder / kStateName;
  const nlohmann::json json = read_strict_json(file, /*max_depth=*/4);
  const auto optimizer = json.find("optimizer");
  if (!json.is_object() || optimizer == json.end() || !optimizer->is_object()) {
    throw CheckpointError(cat(file.string(), " does not describe a training state"));
  }
  const auto data = json.find("data");
  return {{.step = require_count(json, "step", file),
           .samples_seen = require_count(json, "samples_seen", file),
           .data = data != json.end() && data->is_string() ? data->get<std::string>() : ""},
          require_count(*optimizer, "steps", file)};
}

// Keys that make it another model or another optimizer; the rest may differ, but not in silence.
const std::set<std::string> kMustAgree{"model.family",
                                       "model.layers",
                                       "model.width",
                                       "model.heads",
                                       "model.context",
                                       "model.vocabulary",
                                       "train.optimizer"};

bool may_differ(const std::string& key, const config::Recipe& ours) {
  // The number of steps matters where the learning rate follows it.
  const bool is_unused = key.starts_with("train.loss_scale") && ours.train.precision != "float16";
  return key == "model.weights" || is_unused ||
         (key == "train.steps" && ours.train.schedule == "constant");
}

void compare_recipes(const fs::path& folder,
                     const config::Recipe& stored,
                     const config::Recipe& ours) {
  for (const config::Option& option : config::option_table()) {
    const std::string before = config::format_value(option.get(stored));
    const std::string now = config::format_value(option.get(ours));
    const bool decides_numbers =
        option.section() == "model" || option.section() == "data" || option.section() == "train";
    if (before == now || !decides_numbers || may_differ(option.key, ours)) {
      continue;
    }
    // Momentum from nothing has no buffer to go on from.
    const bool is_other_state = option.key == "train.momentum" && ours.train.optimizer == "sgd" &&
                                (stored.train.momentum == 0 || ours.train.momentum == 0);
    if (kMustAgree.contains(option.key) || is_other_state) {
      throw CheckpointError(cat("cannot resume from ",
                                folder.string(),
                                ": it has ",
                                option.key,
                                " = ",
                                before,
                                ", the recipe ",
                                now,
                                "; resume with the recipe it was trained by"));
    }
    log_warning(
        "resuming with ", option.key, " = ", now, "; the checkpoint was trained with ", before);
  }
}

}  // namespace

fs::path save(const config::Recipe& recipe,
              const model::Parameters& parameters,
              const optim::Optimizer& optimizer,
              const TrainState& state) {
  PendingCheckpoint pending(recipe.run.out, state.step);
  const fs::path& folder = pending.path();
  pending.add(save_tensors(folder, kWeightsName, weight_tensors(parameters)));
  const OptimizerTensors optimizer_tensors(parameters, optimizer);
  pending.add(save_tensors(folder, kOptimizerName, optimizer_tensors.named()));
  pending.add(save_text(folder, kStateName, state_text(recipe, optimizer, state)));
  pending.add(save_text(folder, kRecipeName, config::format_recipe(recipe)));
  pending.add(
      save_text(folder, kConfigName, hugging_face_config(recipe.model, recipe.data.tokenizer)));
  const fs::path final = pending.commit({.penstock_version = kVersion,
                                         .torch_version = TORCH_VERSION,
                                         .created = utc_now(),
                                         .loss_scale = state.loss_scale});
  try {
    remove_old_checkpoints(recipe.run.out, recipe.run.keep);
  } catch (const FileError& error) {
    log_warning(error.what(), "; older checkpoints stay");  // the new one is safe
  }
  return final;
}

config::Recipe verified_recipe(const fs::path& folder) {
  verify_files(folder, read_manifest(folder));
  const fs::path file = folder / kRecipeName;
  const config::Recipe recipe = config::parse_recipe(read_text_file(file), file.string());
  config::validate(recipe);
  return recipe;
}

void load_weights(const fs::path& folder, model::Parameters& parameters) {
  load_tensors(folder / kWeightsName, weight_tensors(parameters));
  parameters.refresh_compute();
}

TrainState load(const fs::path& folder,
                const config::Recipe& recipe,
                model::Parameters& parameters,
                optim::Optimizer& optimizer) {
  compare_recipes(folder, verified_recipe(folder), recipe);
  StoredState stored = read_state(folder);
  if (recipe.train.precision == "float16") {
    stored.state.loss_scale = read_manifest(folder).loss_scale;
  }
  load_weights(folder, parameters);
  const OptimizerTensors optimizer_tensors(parameters, optimizer);
  load_tensors(folder / kOptimizerName, optimizer_tensors.named());
  optimizer.set_steps_done(stored.optimizer_steps);
  return stored.state;
}

}  // namespace penstock::checkpoint
