// Sound programs of two replicas, small enough to break by hand.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "penstock/plan/exchanges.h"
#include "penstock/plan/holdings.h"
#include "penstock/plan/pipeline.h"
#include "penstock/plan/shard.h"
#include "penstock/program/program.h"
#include "penstock/program/verify.h"

namespace penstock::test {

// The elements of a unit that a replica moves: an even part of them; of four elements and more the
// first replica has the last one, too.
inline std::vector<program::Slice> slices_of(int64_t elements, int32_t replica, int32_t replicas) {
  const bool wraps = elements >= 4;
  const int64_t divided = wraps ? elements - 1 : elements;
  const int64_t first = divided * replica / replicas, end = divided * (replica + 1) / replicas;
  std::vector<program::Slice> slices;
  if (end > first) {
    slices.push_back({first, end});
  }
  if (wraps && replica == 0) {
    slices.push_back({divided, elements});
  }
  return slices;
}

// What the ranks hold of these units, a byte for each element: weights, gradient and state, each
// sharded as far as the program says. Of a unit that layers share, each layer but the first that a
// rank has adds to a share of its own.
inline plan::Holdings holdings_of(const program::Program& program,
                                  const std::vector<program::Unit>& units) {
  using program::Value;
  using enum program::ValueKind;
  plan::Holdings holdings{.units = units, .num_parameters = 1};
  for (int32_t rank = 0; rank < program.mesh.ranks(); ++rank) {
    plan::RankHoldings& held = holdings.ranks.emplace_back();
    for (size_t i = 0; i < units.size(); ++i) {
      held.shared_bytes.push_back(units[i].elements);
      const std::vector<program::Slice> slices =
          slices_of(units[i].elements, program.replica_of(rank), program.replicas());
      const auto add = [&](program::ValueKind kind, bool is_sharded, int32_t layer = -1) {
        Value value{.kind = kind,
                    .layer = layer,
                    .unit = static_cast<int32_t>(i),
                    .bytes = units[i].elements};
        if (is_sharded) {
          value.slices = slices;
          value.bytes = 0;
          for (const program::Slice& slice : slices) {
            value.bytes += slice.count();
          }
        }
        held.values.push_back({value});
      };
      std::vector<int32_t> layers;  // of the unit, that the rank works at
      for (const int32_t layer : units[i].layers) {
        const auto is_at = [&](const program::Instruction& one) {
          return is_at_layer(one.op) &&
                 layer == (one.op == program::Op::Loss ? program.loss_index() : one.layer);
        };
        const auto& list = program.ranks[static_cast<size_t>(rank)].instructions;
        if (std::any_of(list.begin(), list.end(), is_at)) {
          layers.push_back(layer);
        }
      }
      if (layers.empty()) {
        continue;
      }
      add(Master, program.shard == program::Shard::Parameters);
      if (units[i].is_frozen) {
        continue;
      }
      add(GradientSum, !program.keeps_gradients());
      for (size_t k = 1; units[i].is_shared && k < layers.size(); ++k) {
        add(Share, !program.keeps_gradients(), layers[k]);
      }
      add(State, program.shard != program::Shard::None);
    }
  }
  return holdings;
}

// Layers "a" and "b", which take 4 bytes and keep 10.
inline plan::CostTable replicated_table() {
  plan::CostTable table;
  for (const char* name : {"a", "b"}) {
    plan::LayerCost layer{.name = name, .input_bytes = 4, .output_bytes = 4, .forward_s = 1};
    layer.modes = {{.forward_s = 1, .backward_s = 2, .saved_bytes = 10, .needs_output = false}};
    table.layers.push_back(layer);
  }
  table.loss.seconds = 1;
  table.target_bytes = 1;
  return table;
}

// Layers "a" and "b" with units of their own and unit 2 "table", which layer 0 and the loss share.
inline const std::vector<program::Unit>& replicated_units() {
  static const std::vector<program::Unit> units = {
      {.name = "a", .layers = {0}, .elements = 10},
      {.name = "b", .layers = {1}, .elements = 20},
      {.name = "table", .layers = {0, 2}, .is_shared = true, .elements = 40}};
  return units;
}

// Two layers with these units. Of one rank, or of two, twice.
inline program::Program replicated_program(
    program::Shard shard,
    int32_t stages = 1,
    schedule::Kind kind = schedule::Kind::OneFOneB,
    int32_t micro_batches = 2,
    const std::vector<program::Unit>& units = replicated_units()) {
  const plan::CostTable table = replicated_table();
  plan::Pipeline pipeline{
      .schedule = schedule::make_schedule(kind, stages, micro_batches),
      .cuts = stages == 1 ? std::vector<int32_t>{0, 2} : std::vector<int32_t>{0, 1, 2}};
  pipeline.operations = plan::keep_everything(table, pipeline.cuts, micro_batches);
  const auto unit = [](program::Unit one) {
    return plan::UnitCost{.unit = one,
                          .gathered_bytes = one.elements,
                          .bucket_bytes = one.elements,
                          .gather_s = 0.5,
                          .reduce_s = 0.25,
                          .gather_sent = {7, 8},
                          .reduce_sent = {9, 10}};
  };
  plan::Sharding sharding{.replicas = 2, .shard = shard};
  for (const program::Unit& one : units) {
    sharding.units.push_back(unit(one));
  }
  program::Program program = plan::shard(plan::write_turns(table, pipeline), sharding);
  const plan::Holdings holdings = holdings_of(program, sharding.program_units());
  return plan::finish_program(std::move(program), holdings, {}, 0);
}

// Likewise, with what an optimizer exchanges in an update of this form.
inline program::Program exchanging_program(program::Shard shard,
                                           const plan::UpdateForm& form,
                                           int32_t stages = 1) {
  program::Program program = replicated_program(shard, stages);
  const plan::ExchangeBytes bytes{.sketches = 11,
                                  .momentum = 12,
                                  .alive = 13,
                                  .average = 14,
                                  .lengths = 15,
                                  .shared = {10, 20, 40}};
  const std::vector<plan::ExchangeBytes> ranks(program.ranks.size(), bytes);
  return plan::write_exchanges(std::move(program), form, ranks, {});
}

// The n-th instruction of this kind in a rank's list.
inline size_t place_of(const program::RankProgram& rank, program::Op op, int n = 0) {
  for (size_t i = 0; i < rank.instructions.size(); ++i) {
    if (rank.instructions[i].op == op && n-- == 0) {
      return i;
    }
  }
  throw std::runtime_error("no such instruction");
}

inline program::ValueId value_named(const program::RankProgram& rank, const std::string& name) {
  const std::vector<std::string> names = value_names(rank);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw std::runtime_error("no value " + name);
  }
  return static_cast<program::ValueId>(found - names.begin());
}

inline std::string fault_of(const program::Program& program) {
  const program::Verdict verdict = verify(program);
  return verdict.is_sound() ? "" : verdict.violation->text;
}

}  // namespace penstock::test
