#include "penstock/checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <torch/headeronly/version.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/log.h"
#include "penstock/base/version.h"
#include "penstock/checkpoint/model_config.h"
#include "penstock/checkpoint/pending_checkpoint.h"
#include "penstock/checkpoint/rank_shards.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/strict_json.h"
#include "penstock/checkpoint/tensor_shards.h"
#include "penstock/checkpoint/together.h"
#include "penstock/checkpoint/verify.h"
#include "penstock/comm/group.h"
#include "penstock/comm/local.h"
#include "penstock/comm/mesh.h"
#include "penstock/config/options.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/onebit_steps.h"
#include "penstock/optim/optimizer.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWeightsName = "model.safetensors";
constexpr const char* kOptimizerName = "optimizer.safetensors";
constexpr const char* kStateName = "state.json";
constexpr const char* kLayersName = "layers.safetensors";  // where layers have state
constexpr const char* kRecipeName = "recipe.toml";
constexpr const char* kConfigName = "config.json";
constexpr const char* kReplicasKey = "replicas";  // in state.json, where state is per replica

FileRecord save_text(const fs::path& folder, const std::string& name, const std::string& text) {
  FileWriter file(folder / name);
  file.write(text);
  file.finish();
  return {name, file.size(), file.checksum()};
}

std::string state_text(const config::Recipe& recipe,
                       const optim::Optimizer& optimizer,
                       int32_t replicas,
                       const TrainState& state) {
  nlohmann::ordered_json json{
      {"step", state.step},
      {"samples_seen", state.samples_seen},
      {"data", state.data},
      {"optimizer", {{"kind", recipe.train.optimizer}, {"steps", optimizer.steps_done()}}},
      {"random", {{"generator", "philox4x32-10"}, {"seed", recipe.train.seed}}}};
  if (has_replica_state(optimizer)) {
    json["optimizer"][kReplicasKey] = replicas;
  }
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
  int64_t replicas = 0;  // 0: no state is per replica
};

StoredState read_state(const fs::path& folder) {
  const fs::path file = folder / kStateName;
  const nlohmann::json json = read_strict_json(file, /*max_depth=*/4);
  const auto optimizer = json.find("optimizer");
  if (!json.is_object() || optimizer == json.end() || !optimizer->is_object()) {
    throw CheckpointError(cat(file.string(), " does not describe a training state"));
  }
  const auto data = json.find("data");
  return {
      .state = {.step = require_count(json, "step", file),
                .samples_seen = require_count(json, "samples_seen", file),
                .data = data != json.end() && data->is_string() ? data->get<std::string>() : ""},
      .optimizer_steps = require_count(*optimizer, "steps", file),
      .replicas =
          optimizer->contains(kReplicasKey) ? require_count(*optimizer, kReplicasKey, file) : 0};
}

// Whether the key makes it another model or another optimizer; the rest may differ, but not in
// silence.
bool must_agree(const config::Option& option) {
  const bool is_of_model = option.section() == "model" && option.key != "model.dropout";
  return is_of_model || option.key == "train.optimizer";
}

bool may_differ(const std::string& key, const config::Recipe& ours) {
  // The number of steps matters where the learning rate follows it.
  const bool is_unused = key.starts_with("train.loss_scale") && ours.train.precision != "float16";
  return key == "model.weights" || is_unused ||
         (key == "train.steps" && ours.train.schedule == "constant");
}

// Where weights move while micro-batches are in flight, the plan is part of the numbers.
const std::set<std::string> kDecideDelays{"plan.pipeline",
                                          "plan.schedule",
                                          "plan.micro_batches",
                                          "plan.cuts",
                                          "plan.flush_every",
                                          "plan.sync_steps",
                                          "plan.anneal_steps"};

bool decides_numbers(const config::Option& option,
                     const config::Recipe& stored,
                     const config::Recipe& ours) {
  if (option.section() == "model" || option.section() == "data" || option.section() == "train") {
    return true;
  }
  return kDecideDelays.contains(option.key) &&
         (stored.plan.is_asynchronous() || ours.plan.is_asynchronous());
}

void compare_recipes(const fs::path& folder,
                     const config::Recipe& stored,
                     const config::Recipe& ours) {
  for (const config::Option& option : config::option_table()) {
    const std::string before = config::format_value(option.get(stored));
    const std::string now = config::format_value(option.get(ours));
    if (before == now || !decides_numbers(option, stored, ours) || may_differ(option.key, ours)) {
      continue;
    }
    // Momentum from nothing has no buffer to go on from.
    const bool is_other_state = option.key == "train.momentum" && ours.train.optimizer == "sgd" &&
                                (stored.train.momentum == 0 || ours.train.momentum == 0);
    if (must_agree(option) || is_other_state) {
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

// The number of a step decides what 1-bit optimizers do in it.
void require_same_variance(const fs::path& folder,
                           const config::TrainOptions& stored,
                           const config::TrainOptions& ours,
                           int64_t steps) {
  const std::string settings =
      ours.is_one_bit() ? optim::settings_to_go_on(stored, ours, steps) : "";
  if (!settings.empty()) {
    throw CheckpointError(
        cat("cannot resume from ",
            folder.string(),
            ": ",
            ours.optimizer,
            " would have updated its variance in other steps by this recipe; set ",
            settings));
  }
}

// What rank 0 does when the tensors are written.
fs::path commit(PendingCheckpoint& pending,
                const config::Recipe& recipe,
                const std::string& state_json,
                const TrainState& state) {
  const fs::path& folder = pending.path();
  pending.add(save_text(folder, kStateName, state_json));
  pending.add(save_text(folder, kRecipeName, config::format_recipe(recipe)));
  if (recipe.model.family != config::kOwnFamily) {
    pending.add(
        save_text(folder, kConfigName, hugging_face_config(recipe.model, recipe.data.tokenizer)));
  }
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

// What the ranks write together: a file, and this rank's part of it.
struct TensorFile {
  const char* name;
  SafetensorsLayout layout;
  std::vector<TensorShard> shards;
};

fs::path write_together(const config::Recipe& recipe,
                        const std::vector<TensorFile>& files,
                        const std::string& state_json,
                        const TrainState& state,
                        comm::Group& group) {
  const comm::What what = [] { return std::string("the end of saving"); };
  std::optional<PendingCheckpoint> pending;  // rank 0 has it
  try {
    run_together(group, what, [&] {
      if (group.rank() == 0) {
        pending.emplace(recipe.run.out, state.step);
        for (const TensorFile& file : files) {
          create_safetensors(pending->path() / file.name, file.layout);
        }
      }
    });
    const fs::path folder = share_text(group, 0, pending ? pending->path().string() : "", what);
    for (const TensorFile& file : files) {
      const FileRecord record = write_shards(folder, file.name, file.layout, file.shards, group);
      if (pending) {
        pending->add(record);
      }
    }
    fs::path final;
    run_together(group, what, [&] {
      if (pending) {
        final = commit(*pending, recipe, state_json, state);
      }
    });
    return final;
  } catch (const FileError&) {
    // All ranks are here. What was begun is gone before the first of them ends the job.
    pending.reset();
    group.barrier(what);
    throw;
  }
}

}  // namespace

fs::path save(const config::Recipe& recipe,
              const model::Chain& chain,
              const std::vector<model::Part>& parts,
              const comm::Mesh& mesh,
              const model::Parameters& parameters,
              const optim::Optimizer& optimizer,
              const TrainState& state,
              comm::Group& group) {
  const comm::Coordinates at = mesh.coordinates(group.rank());
  PENSTOCK_CHECK(group.size() == mesh.ranks() &&
                     mesh.pipeline == static_cast<int32_t>(parts.size()) &&
                     mesh.data == parameters.replicas() && at.data == parameters.replica(),
                 describe(mesh, group.rank()),
                 " of ",
                 group.size(),
                 " as replica ",
                 parameters.replica(),
                 " of ",
                 parameters.replicas(),
                 " of ",
                 parts.size(),
                 " stages");
  std::set<std::string> left_out;  // an earlier stage writes it
  for (int32_t stage = 0; stage < at.pipeline; ++stage) {
    for (const model::ParameterSpec& spec : chain.parameters(parts[static_cast<size_t>(stage)])) {
      left_out.insert(spec.name);
    }
  }
  const std::vector<model::ParameterSpec> specs = chain.parameters();
  const std::map<std::string, std::string> metadata{{"format", "pt"}};
  const int32_t replicas = parameters.replicas();
  std::vector<TensorFile> files = {
      {kWeightsName,
       SafetensorsLayout(weight_specs(specs), metadata),
       weights_to_write(parameters, left_out)},
      {kOptimizerName,
       SafetensorsLayout(state_specs(specs, optimizer, replicas), metadata),
       state_to_write(parameters, optimizer, left_out)}};
  if (const std::vector<TensorSpec> layers = layer_state_specs(chain); !layers.empty()) {
    // Replicas have the same: the first writes it.
    files.push_back({kLayersName,
                     SafetensorsLayout(layers, metadata),
                     at.data == 0 ? layer_state_shards(parameters) : std::vector<TensorShard>()});
  }
  return write_together(
      recipe, files, state_text(recipe, optimizer, replicas, state), state, group);
}

fs::path save(const config::Recipe& recipe,
              const model::Chain& chain,
              const model::Parameters& parameters,
              const optim::Optimizer& optimizer,
              const TrainState& state) {
  fs::path folder;
  comm::run_local(1, [&](comm::Group& alone) {
    folder =
        save(recipe, chain, {chain.whole()}, comm::Mesh(), parameters, optimizer, state, alone);
  });
  return folder;
}

namespace {

config::Recipe read_recipe(const fs::path& folder) {
  const fs::path file = folder / kRecipeName;
  const config::Recipe recipe = config::parse_recipe(read_text_file(file), file.string());
  config::validate(recipe);
  return recipe;
}

// State that each replica has by itself is taken as it is by as many replicas, and by any other
// number of them as the mean of those that there were.
void load_state(const fs::path& folder,
                int64_t stored_replicas,
                const model::Parameters& parameters,
                const optim::Optimizer& optimizer) {
  const SafetensorsFile file(folder / kOptimizerName);
  read_shards(file, state_shards(parameters, optimizer));
  std::vector<TensorShard> shards = replica_state_shards(parameters, optimizer);
  if (stored_replicas == parameters.replicas()) {
    name_by_replica(shards, parameters.replica());
    return read_shards(file, shards);
  }
  for (const TensorShard& shard : shards) {
    // At least one: where there is none, the error says so.
    read_mean(file, shard, std::max<int64_t>(stored_replicas, 1));
  }
}

}  // namespace

config::Recipe verified_recipe(const fs::path& folder, comm::Group& group) {
  const comm::What what = [] { return std::string("the checkpoint's recipe"); };
  Manifest manifest;
  run_together(group, what, [&] { manifest = read_manifest(folder); });
  verify_files(folder, manifest, group);
  config::Recipe recipe;
  run_together(group, what, [&] { recipe = read_recipe(folder); });
  return recipe;
}

config::Recipe verified_recipe(const fs::path& folder) {
  config::Recipe recipe;
  comm::run_local(1, [&](comm::Group& alone) { recipe = verified_recipe(folder, alone); });
  return recipe;
}

void load_weights(const fs::path& folder, model::Parameters& parameters) {
  read_shards(SafetensorsFile(folder / kWeightsName), weight_shards(parameters));
  parameters.refresh_compute();
  if (parameters.has_state()) {
    read_exact_shards(SafetensorsFile(folder / kLayersName), layer_state_shards(parameters));
    parameters.reset_state();
  }
}

TrainState load(const fs::path& folder,
                const config::Recipe& recipe,
                model::Parameters& parameters,
                optim::Optimizer& optimizer,
                comm::Group& group) {
  const config::Recipe stored_recipe = verified_recipe(folder, group);
  const comm::What what = [] { return std::string("the end of reading the checkpoint"); };
  StoredState stored;
  run_together(group, what, [&] {
    compare_recipes(folder, stored_recipe, recipe);
    stored = read_state(folder);
    require_same_variance(folder, stored_recipe.train, recipe.train, stored.optimizer_steps);
    if (recipe.train.precision == "float16") {
      stored.state.loss_scale = read_manifest(folder).loss_scale;
    }
    load_weights(folder, parameters);
    load_state(folder, stored.replicas, parameters, optimizer);
  });
  optimizer.set_steps_done(stored.optimizer_steps);
  return stored.state;
}

TrainState load(const fs::path& folder,
                const config::Recipe& recipe,
                model::Parameters& parameters,
                optim::Optimizer& optimizer) {
  TrainState state;
  comm::run_local(
      1, [&](comm::Group& alone) { state = load(folder, recipe, parameters, optimizer, alone); });
  return state;
}

}  // namespace penstock::checkpoint
