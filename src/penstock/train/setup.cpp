#include "penstock/train/setup.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/checkpoint/model_config.h"
#include "penstock/checkpoint/weights.h"
#include "penstock/comm/gpu_channel.h"
#include "penstock/comm/launcher.h"
#include "penstock/comm/nccl.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/family.h"
#include "penstock/run/fast_gemms.h"
#include "penstock/train/process_memory.h"

namespace penstock::train {

void prepare_process(config::Recipe& recipe, int64_t asked_ranks) {
  memory::install_cpu_allocator();
  run::use_fast_gemms();
  const int64_t ranks = comm::launched_ranks() > 1 ? 1 : std::max(asked_ranks, recipe.plan.ranks());
  // A process may train several times, with other ranks.
  static const int usual = at::get_num_threads();
  if (recipe.run.threads > 0) {
    at::set_num_threads(static_cast<int>(recipe.run.threads));
  } else {
    at::set_num_threads(std::max(1, usual / static_cast<int>(ranks)));
  }
  recipe = within_process_memory(
      std::move(recipe), ranks, resident_bytes() + (comm::launched_ranks() > 1 ? kMpiBytes : 0));
}

namespace {

device::DeviceOptions device_options(const config::Recipe& recipe) {
  return {.is_deterministic = recipe.run.deterministic,
          .allows_tf32 = recipe.train.precision == "tf32"};
}

}  // namespace

device::Device open_device(const config::Recipe& recipe) {
  device::Device device =
      recipe.run.device == "cuda" ? device::open_gpu(device_options(recipe)) : device::open_cpu();
  memory::set_process_account(device.account());
  return device;
}

device::Device open_device(const config::Recipe& recipe, const comm::Group& group) {
  if (group.size() == 1) {
    return open_device(recipe);
  }
  if (recipe.run.device != "cuda") {
    return device::open_cpu();
  }
  device::DeviceOptions options = device_options(recipe);
  options.is_one_of_several = group.shares_memory();
  options.index =
      group.shares_memory() ? group.rank() : comm::launched_local_rank().value_or(group.rank());
  options.uses_nccl = recipe.run.links == "nccl";
  device::Device device = device::open_gpu(options);
  if (options.uses_nccl) {
    comm::require_nccl();
    comm::require_processes(group);
  }
  return device;
}

bool uses_graph(const config::Recipe& recipe, const model::Chain& chain) {
  if (recipe.run.device != "cuda" || recipe.run.graphs == "off" || chain.is_random()) {
    return false;
  }
  // A graph cannot wait for a peer.
  if (recipe.plan.ranks() > 1) {
    return false;
  }
  // Under a limit the allocator must be free to move its pages, which it cannot while it records.
  return recipe.plan.memory_bytes() == 0;
}

at::ScalarType compute_type(const config::TrainOptions& train) {
  return train.precision == "bfloat16"  ? at::kBFloat16
         : train.precision == "float16" ? at::kHalf
                                        : at::kFloat;
}

void load_start_weights(const config::ModelOptions& model,
                        const model::Chain& chain,
                        model::Parameters& parameters,
                        comm::Group* group) {
  if (model.weights.empty()) {
    return;
  }
  const std::filesystem::path file = checkpoint::find_weights_file(model.weights);
  checkpoint::require_same_model(file.parent_path(), model);
  std::vector<std::string> others;
  for (const model::ParameterSpec& spec : chain.parameters()) {
    if (parameters.find(spec.name) == nullptr) {
      others.push_back(spec.name);
    }
  }
  const model::StoredNames names = model::find_family(model.family).stored_names();
  if (group != nullptr) {
    checkpoint::import_weights(file, parameters, names, others, *group);
  } else {
    checkpoint::import_weights(file, parameters, names, others);
  }
  log_info("starting from the weights of ", file.string());
}

}  // namespace penstock::train
