#include "penstock/optim/optimizer_size.h"

#include <algorithm>

#include "penstock/base/error.h"
#include "penstock/comm/compressed.h"
#include "penstock/kernels/onebit.h"

namespace penstock::optim {

namespace {

using Layout = plan::StateSize::Layout;

constexpr int64_t kStagingBytes = int64_t{1} << 21;
constexpr int64_t kFloatBytes = 4;

// Momentum and the worker's error of all; variance and the server's error of slices.
plan::OptimizerSize onebit_size(const config::TrainOptions& train,
                                const plan::Inventory& inventory) {
  int64_t blocks = 0;
  for (size_t i = 0; i < inventory.units.size(); ++i) {
    const bool moves = inventory.units[i].is_here && !inventory.sizes[i].unit.is_frozen;
    for (const plan::ParameterSize& parameter : inventory.sizes[i].parameters) {
      blocks += moves ? sign_blocks(parameter.count) : 0;
    }
  }
  const int32_t replicas = inventory.place.replicas;
  plan::OptimizerSize size{
      .state = {
          {"exp_avg", Layout::Whole},
          {"exp_avg_sq", Layout::Slices},
          {"worker_error", Layout::Whole},
          {"server_error", Layout::Other, server_blocks(blocks, replicas) * kernels::kSignBlock}}};
  if (train.optimizer == "onebit-lamb") {
    for (const char* name : {"update_norm", "frozen_square", "gradient_square"}) {
      size.state.push_back({name, Layout::PerParameter});
    }
  }
  const int64_t whole = inventory.state_elements({"", Layout::Whole});
  size.workspaces = {{"which elements have a variance", kernels::bit_bytes(whole)},
                     {"1-bit compressed messages", onebit_staging_bytes(replicas)}};
  if (train.optimizer == "zeroone-adam" && train.local_step_clipper > 1 && replicas > 1) {
    size.workspaces.emplace_back("weights of the last meeting", kFloatBytes * whole);
  }
  return size;
}

}  // namespace

int64_t sign_blocks(int64_t count) {
  return (count + kernels::kSignBlock - 1) / kernels::kSignBlock;
}

int64_t server_blocks(int64_t blocks, int32_t replicas) {
  return (blocks + replicas - 1) / replicas;
}

int64_t onebit_staging_bytes(int32_t replicas) {
  return replicas == 1 ? 0
                       : std::max(kStagingBytes, comm::CompressedReduce::least_staging(replicas));
}

plan::OptimizerSize optimizer_size(const config::TrainOptions& train,
                                   const plan::Inventory& inventory) {
  if (train.is_one_bit()) {
    return onebit_size(train, inventory);
  }
  if (train.optimizer == "sgd") {
    return train.momentum > 0 ? plan::OptimizerSize{{{"momentum_buffer", Layout::Slices}}}
                              : plan::OptimizerSize{};
  }
  plan::OptimizerSize adam{{{"exp_avg", Layout::Slices}, {"exp_avg_sq", Layout::Slices}}};
  if (train.optimizer == "lamb") {
    const bool is_sharded = inventory.place.shard != program::Shard::None;
    const Layout layout = is_sharded ? Layout::Slices : Layout::Largest;
    adam.workspaces = {{"update", kFloatBytes * inventory.state_elements({"", layout})}};
  }
  return adam;
}

}  // namespace penstock::optim
