// Three layers and a loss with units that a test names: what their passes make of them is seen line
// by line.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/plan/holdings.h"
#include "penstock/plan/pipeline.h"
#include "penstock/plan/shard.h"

namespace penstock::test {

// Layers that take no time and 4 bytes, and keep all.
inline program::Program small_turns(const std::vector<int32_t>& cuts,
                                    const schedule::Schedule& schedule) {
  plan::CostTable table;
  for (int32_t i = 0; i < cuts.back(); ++i) {
    plan::LayerCost layer{.name = cat("layer ", i), .input_bytes = 4, .output_bytes = 4};
    layer.modes = {{.saved_bytes = 10, .needs_output = false}};
    table.layers.push_back(layer);
  }
  plan::Pipeline pipeline{.schedule = schedule, .cuts = cuts};
  pipeline.operations = plan::keep_everything(table, cuts, schedule.micro_batches);
  pipeline.weight_bytes.assign(static_cast<size_t>(schedule.ranks()), 100);
  return plan::write_turns(table, pipeline);
}

// One rank, layer by layer and micro-batch by micro-batch.
inline program::Program small_turns(int32_t layers, int32_t micro_batches) {
  return small_turns({0, layers},
                     schedule::make_schedule(schedule::Kind::OneFOneB, 1, micro_batches));
}

// How a rank holds a unit.
struct UnitHeld {
  int32_t unit = 0;
  bool has_compute = false;
  std::vector<int32_t> shares = {};  // layers
};

// Master 100, compute copy 50, gradient 40, shares 30 and state 20 bytes.
inline plan::RankHoldings held_units(const std::vector<UnitHeld>& units) {
  using enum program::ValueKind;
  plan::RankHoldings rank;
  for (const UnitHeld& held : units) {
    rank.values.push_back({{.kind = Master, .unit = held.unit, .bytes = 100}});
    if (held.has_compute) {
      rank.values.push_back({{.kind = Compute, .unit = held.unit, .bytes = 50}});
    }
    rank.values.push_back({{.kind = GradientSum, .unit = held.unit, .bytes = 40}});
    for (const int32_t layer : held.shares) {
      rank.values.push_back({{.kind = Share, .layer = layer, .unit = held.unit, .bytes = 30}});
    }
    rank.values.push_back({{.kind = State, .unit = held.unit, .bytes = 20}});
  }
  return rank;
}

inline program::Unit own_unit(int32_t layer, std::vector<int32_t> forward_only = {}) {
  return {.name = cat("own ", layer),
          .layers = {layer},
          .forward_only = std::move(forward_only),
          .elements = 8};
}
inline program::Unit table_unit(std::vector<int32_t> layers) {
  return {.name = "table", .layers = std::move(layers), .is_shared = true, .elements = 8};
}

// Two replicas, each with half of every unit as far as `shard` divides it.
inline plan::Sharding two_replicas(program::Shard shard, const std::vector<program::Unit>& units) {
  plan::Sharding sharding{.replicas = 2, .shard = shard};
  for (const program::Unit& unit : units) {
    sharding.units.push_back({.unit = unit, .gather_sent = {5, 6}, .reduce_sent = {7, 8}});
  }
  return sharding;
}

// `held` is of one replica, for each stage; both get it, sharded. A master with a compute copy is
// sharded with the optimizer's state.
inline plan::Holdings both_replicas(program::Shard shard,
                                    const std::vector<program::Unit>& units,
                                    const std::vector<plan::RankHoldings>& held) {
  using program::Shard;
  using program::ValueKind;
  plan::Holdings holdings{.units = units};
  for (const plan::RankHoldings& stage : held) {
    for (const int64_t replica : {0, 1}) {
      plan::RankHoldings rank = stage;
      for (plan::HeldValue& one : rank.values) {
        const bool has_copy =
            std::any_of(stage.values.begin(), stage.values.end(), [&](const auto& other) {
              return other.value.kind == ValueKind::Compute && other.value.unit == one.value.unit;
            });
        const bool is_gradient =
            one.value.kind == ValueKind::GradientSum || one.value.kind == ValueKind::Share;
        const bool is_sharded =
            (one.value.kind == ValueKind::State && shard != Shard::None) ||
            (one.value.kind == ValueKind::Master &&
             (shard == Shard::Parameters || (shard != Shard::None && has_copy))) ||
            (is_gradient && (shard == Shard::Gradients || shard == Shard::Parameters));
        if (is_sharded) {
          one.value.slices = {{4 * replica, 4 * replica + 4}};
        }
      }
      holdings.ranks.push_back(rank);
    }
  }
  return holdings;
}

}  // namespace penstock::test
