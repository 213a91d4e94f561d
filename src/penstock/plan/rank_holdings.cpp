#include "penstock/plan/rank_holdings.h"

#include <algorithm>
#include <map>
#include <string>

#include "penstock/comm/collectives.h"
#include "penstock/plan/plan.h"
#include "penstock/plan/sharding.h"

namespace penstock::plan {

namespace {

// What blocks add: each buffer ends with one. A kind of value has one buffer for all units; state has
// one for each of its names.
int64_t rounding_bytes(const RankHoldings& holdings,
                       const OptimizerSize& optimizer,
                       const Inventory& inventory,
                       const Machine& machine) {
  using program::ValueKind;
  std::map<ValueKind, int64_t> by_kind;
  for (const HeldValue& one : holdings.values) {
    by_kind[one.value.kind] += one.value.bytes;
  }
  for (const ValueKind kind : {ValueKind::State, ValueKind::RankState, ValueKind::Fixed}) {
    by_kind.erase(kind);
  }
  int64_t sum = 0;
  const auto add = [&](int64_t bytes) { sum += machine.block(bytes) - bytes; };
  for (const auto& [kind, bytes] : by_kind) {
    add(bytes);
  }
  for (const StateSize& state : optimizer.state) {
    add(int64_t{4} * inventory.state_elements(state));
  }
  return sum;
}

RankHoldings rank_holdings(const ModelSizes& model,
                           const Inventory& inventory,
                           const CostTable& costs,
                           const Machine& machine) {
  OptimizerSize optimizer = model.optimizer(inventory);
  for (auto& [name, bytes] : optimizer.workspaces) {
    bytes = machine.block(bytes);
  }
  RankHoldings holdings = holdings_of(inventory, optimizer, model.compute_bytes);
  const auto add = [&](const std::string& name, int64_t bytes) {
    if (bytes > 0) {
      holdings.values.push_back(fixed_value(name, bytes));
    }
  };
  add("ends of buffers", rounding_bytes(holdings, optimizer, inventory, machine));
  for (const program::Held& held : costs.held) {
    if (held.name == kWorkspacesName) {
      add(held.name, held.bytes);
    }
  }
  for (const int32_t layer : inventory.place.layers) {
    const int64_t bytes = model.layers[static_cast<size_t>(layer)].state_bytes;
    if (bytes > 0) {
      holdings.values.push_back(
          {{.kind = program::ValueKind::LayerState, .layer = layer, .bytes = bytes}});
    }
  }
  add("staging of collectives", inventory.place.replicas > 1 ? comm::Collectives::kStaging : 0);
  return holdings;
}

}  // namespace

std::vector<std::vector<int32_t>> layers_by_rank(const Pipeline& pipeline) {
  std::vector<std::vector<int32_t>> all(pipeline.schedule.turns.size());
  const size_t stages = pipeline.schedule.rank_of.size();
  for (size_t stage = 0; stage < stages; ++stage) {
    std::vector<int32_t>& layers = all[static_cast<size_t>(pipeline.schedule.rank_of[stage])];
    const int32_t end = pipeline.cuts[stage + 1] + (stage + 1 == stages ? 1 : 0);
    for (int32_t layer = pipeline.cuts[stage]; layer < end; ++layer) {
      layers.push_back(layer);
    }
  }
  for (std::vector<int32_t>& layers : all) {
    std::sort(layers.begin(), layers.end());
  }
  return all;
}

std::vector<Inventory> all_inventories(const config::PlanOptions& options,
                                       const ModelSizes& model,
                                       const Pipeline& pipeline) {
  const comm::Mesh mesh = mesh_of(options);
  const std::vector<std::vector<int32_t>> layers = layers_by_rank(pipeline);
  const std::vector<UnitSize> units = units_of(options, model, pipeline.cuts);
  std::vector<Inventory> all;
  for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
    all.push_back(take_inventory(
        units,
        {.layers = layers[static_cast<size_t>(mesh.coordinate(rank, comm::Axis::Pipeline))],
         .shard = shard_of(options),
         .replicas = mesh.data,
         .replica = mesh.coordinate(rank, comm::Axis::Data),
         .compute_is_float32 = model.compute_bytes == 4,
         .keeps_shares = model.keeps_shares}));
  }
  return all;
}

Holdings all_holdings(const config::PlanOptions& options,
                      const ModelSizes& model,
                      const Pipeline& pipeline,
                      const CostTable& costs,
                      const Machine& machine) {
  Holdings all{.num_parameters = model.num_parameters()};
  for (const UnitSize& unit : units_of(options, model, pipeline.cuts)) {
    all.units.push_back(unit.unit);
  }
  for (const Inventory& inventory : all_inventories(options, model, pipeline)) {
    all.ranks.push_back(rank_holdings(model, inventory, costs, machine));
  }
  return all;
}

Holdings stage_holdings(const config::PlanOptions& options,
                        const ModelSizes& model,
                        const Pipeline& pipeline,
                        const CostTable& costs,
                        const Machine& machine) {
  Holdings holdings = all_holdings(options, model, pipeline, costs, machine);
  if (options.data == 1) {
    return holdings;
  }
  // Only their sums count here: the program of all replicas is written later.
  const comm::Mesh mesh = mesh_of(options);
  std::vector<RankHoldings> most(static_cast<size_t>(mesh.pipeline));
  for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
    const RankHoldings& one = holdings.ranks[static_cast<size_t>(rank)];
    RankHoldings& stage = most[static_cast<size_t>(mesh.coordinate(rank, comm::Axis::Pipeline))];
    if (stage.values.empty() || one.bytes() > stage.bytes()) {
      stage.values = {fixed_value("weights, gradients and state", one.bytes())};
    }
  }
  holdings.ranks = std::move(most);
  holdings.units.clear();
  return holdings;
}

Holdings whole_holdings(const ModelSizes& model, const CostTable& costs, const Machine& machine) {
  return all_holdings(
      config::PlanOptions(),
      model,
      {.schedule = {.rank_of = {0}, .turns = {{}}}, .cuts = {0, model.num_layers()}},
      costs,
      machine);
}

std::vector<int64_t> copy_bytes_by_stage(const ModelSizes& model,
                                         const Pipeline& pipeline,
                                         const Machine& machine) {
  std::vector<int64_t> all;
  for (const std::vector<int32_t>& layers : layers_by_rank(pipeline)) {
    all.push_back(model.copy_bytes(layers, machine.block_bytes));
  }
  return all;
}

}  // namespace penstock::plan
