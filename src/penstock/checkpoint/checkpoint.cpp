#include "penstock/checkpoint/checkpoint.h"

#include <map>
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
#include "penstock/comm/channels.h"
#include "penstock/comm/group.h"
#include "penstock/config/options.h"
#include "penstock/memory/cpu_allocator.h"
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
                                       "model.tied",
                                       "train.optimizer"};

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

namespace {

fs::path write_checkpoint(const config::Recipe& recipe,
                          const std::vector<TensorSource>& weights,
                          const std::vector<TensorSource>& optimizer_state,
                          const optim::Optimizer& optimizer,
                          const TrainState& state) {
  PendingCheckpoint pending(recipe.run.out, state.step);
  const fs::path& folder = pending.path();
  pending.add(save_tensors(folder, kWeightsName, weights));
  pending.add(save_tensors(folder, kOptimizerName, optimizer_state));
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

// Rank 0's view of tensors that each lie with one rank, and what the others do meanwhile: they send
// theirs, in the same order.
class Collection {
 public:
  Collection(comm::Group& group, int64_t channel) : group_(group), channel_(channel) {}

  void add(const std::string& name,
           const std::vector<int64_t>& shape,
           int32_t owner,
           const at::Tensor& own) {
    if (group_.rank() == 0) {
      sources_.push_back(
          {name, shape, [=, this] { return owner == 0 ? own : receive(name, shape, owner); }});
    } else if (group_.rank() == owner) {
      sends_.push_back({name, own});
    }
  }

  const std::vector<TensorSource>& sources() const { return sources_; }

  void send_all() {
    for (const auto& [name, tensor] : sends_) {
      const at::Tensor here = tensor.cpu();
      comm::Ticket ticket =
          group_.send(0, channel_, here.const_data_ptr(), static_cast<int64_t>(here.nbytes()));
      group_.wait(ticket, [&] { return cat("rank 0 to save ", name); });
    }
  }

 private:
  // Beside the rank's own memory: a limit of the training does not know of it.
  at::Tensor receive(const std::string& name, const std::vector<int64_t>& shape, int32_t owner) {
    const memory::AccountScope scope(memory::process_account());
    const at::Tensor tensor = at::empty(shape, at::kFloat);
    group_.receive(owner, channel_, tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), [&] {
      return cat(name, " to save it");
    });
    return tensor;
  }

  comm::Group& group_;
  int64_t channel_;
  std::vector<TensorSource> sources_;
  std::vector<std::pair<std::string, at::Tensor>> sends_;
};

}  // namespace

fs::path save(const config::Recipe& recipe,
              const model::Parameters& parameters,
              const optim::Optimizer& optimizer,
              const TrainState& state) {
  const OptimizerTensors optimizer_tensors(parameters, optimizer);
  return write_checkpoint(recipe,
                          sources_of(weight_tensors(parameters)),
                          sources_of(optimizer_tensors.named()),
                          optimizer,
                          state);
}

fs::path save_parts(const config::Recipe& recipe,
                    const model::Chain& chain,
                    const std::vector<model::Part>& parts,
                    const model::Parameters& parameters,
                    const optim::Optimizer& optimizer,
                    const TrainState& state,
                    comm::Group& group) {
  std::map<std::string, int32_t> owner;  // of a shared parameter: the first
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (const model::ParameterSpec& spec : chain.parameters(parts[rank])) {
      owner.emplace(spec.name, static_cast<int32_t>(rank));
    }
  }
  const int64_t channel = comm::checkpoint_channel(chain.size());
  Collection weights(group, channel);
  Collection state_buffers(group, channel);
  for (const model::ParameterSpec& spec : chain.parameters()) {
    const model::Parameter* own = parameters.find(spec.name);
    const int32_t rank = owner.at(spec.name);
    weights.add(spec.name, spec.shape, rank, own == nullptr ? at::Tensor() : own->weight);
    for (const optim::StateBuffer& buffer : optimizer.state()) {
      const at::Tensor view =
          own == nullptr ? at::Tensor()
                         : buffer.flat.narrow(0, own->offset, spec.count()).view(spec.shape);
      state_buffers.add(cat(spec.name, ".", buffer.name), spec.shape, rank, view);
    }
  }
  fs::path folder;
  if (group.rank() == 0) {
    folder = write_checkpoint(recipe, weights.sources(), state_buffers.sources(), optimizer, state);
  } else {
    weights.send_all();
    state_buffers.send_all();
  }
  group.barrier([] { return std::string("the end of saving"); });
  return folder;
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
