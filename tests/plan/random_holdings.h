// Random weights, gradients and state of units, in every form that a rank may hold them in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/plan/holdings.h"
#include "penstock/program/program.h"

#include "plan/random_chains.h"

namespace penstock::test {

// Layers that a rank works at; the loss is the one after all layers.
inline std::set<int32_t> layers_of(const program::Program& program,
                                   const program::RankProgram& rank) {
  std::set<int32_t> layers;
  for (const program::Instruction& one : rank.instructions) {
    if (is_at_layer(one.op)) {
      layers.insert(one.op == program::Op::Loss ? program.loss_index() : one.layer);
    }
  }
  return layers;
}

// Of a unit, those layers that a rank works at.
inline std::vector<int32_t> own_layers(const program::Unit& unit, const std::set<int32_t>& layers) {
  std::vector<int32_t> own;
  std::set_intersection(unit.layers.begin(),
                        unit.layers.end(),
                        layers.begin(),
                        layers.end(),
                        std::back_inserter(own));
  return own;
}

// By replica: each element has one owner. A replica may have several slices, or none.
inline std::vector<std::vector<program::Slice>> random_slices(Dice& dice,
                                                              int64_t elements,
                                                              int32_t replicas) {
  std::vector<std::vector<program::Slice>> slices(static_cast<size_t>(replicas));
  for (int64_t first = 0; first < elements;) {
    const int64_t end = dice.between(first + 1, elements);
    slices[static_cast<size_t>(dice.between(0, replicas - 1))].push_back({first, end});
    first = end;
  }
  for (std::vector<program::Slice>& own : slices) {
    if (own.empty()) {
      own.push_back({});  // nothing of it
    }
  }
  return slices;
}

// How the ranks of a program hold one unit.
struct UnitForm {
  bool has_compute = false;
  bool shards_master = false;
  bool is_state_on_host = false;
  std::vector<std::vector<program::Slice>> slices;  // by replica; none: nothing is sharded
};

inline UnitForm random_form(Dice& dice, const program::Program& program, int64_t elements) {
  using program::Shard;
  UnitForm form{.has_compute = program.shard != Shard::Parameters && dice.chance(50),
                .is_state_on_host = dice.chance(15)};
  // Layers see all weights: those of a sharded master only where they are copied or gathered.
  form.shards_master = program.shard == Shard::Parameters ||
                       (program.shard != Shard::None && form.has_compute && dice.chance(70));
  form.slices =
      program.shard == Shard::None
          ? std::vector<std::vector<program::Slice>>(static_cast<size_t>(program.replicas()))
          : random_slices(dice, elements, program.replicas());
  return form;
}

// What one rank holds of a unit, which it has `layers` of.
inline std::vector<plan::HeldValue> random_unit_values(Dice& dice,
                                                       const program::Program& program,
                                                       const program::Unit& unit,
                                                       int32_t number,
                                                       const UnitForm& form,
                                                       int32_t replica,
                                                       const std::vector<int32_t>& layers) {
  using enum program::ValueKind;
  const std::vector<program::Slice>& own = form.slices[static_cast<size_t>(replica)];
  const std::vector<program::Slice> whole;
  std::vector<plan::HeldValue> values;
  const auto add = [&](program::ValueKind kind, bool is_sharded, int32_t layer = -1) {
    // What replicas have whole is of one size at all of them.
    const int64_t whole_bytes = (7 * number + 3 * static_cast<int64_t>(kind)) % 21;
    values.push_back({{.kind = kind,
                       .layer = layer,
                       .unit = number,
                       .bytes = is_sharded ? dice.between(0, 20) : whole_bytes,
                       .slices = is_sharded ? own : whole}});
  };
  add(Master, form.shards_master);
  if (form.has_compute) {
    add(Compute, false);
  }
  if (unit.is_frozen) {
    return values;
  }
  add(GradientSum, !program.keeps_gradients());
  // One layer's part at least goes into the sum itself.
  const auto without_share =
      static_cast<size_t>(dice.between(0, static_cast<int64_t>(layers.size()) - 1));
  for (size_t i = 0; unit.is_shared && i < layers.size(); ++i) {
    if (i != without_share && dice.chance(70)) {
      add(Share, !program.keeps_gradients(), layers[i]);
    }
  }
  add(State, true);
  values.back().value.tier = form.is_state_on_host ? program::Tier::Host : program::Tier::Device;
  return values;
}

inline plan::HeldValue rank_state(const std::string& label, int64_t bytes) {
  plan::HeldValue one = plan::fixed_value(label, bytes);
  one.value.kind = program::ValueKind::RankState;
  return one;
}

// For a program that write_turns() or shard() has written.
inline plan::Holdings random_holdings(Dice& dice,
                                      const program::Program& program,
                                      const std::vector<program::Unit>& units) {
  plan::Holdings holdings{.units = units,
                          .ranks = std::vector<plan::RankHoldings>(program.ranks.size()),
                          .num_parameters = dice.between(0, 9)};
  std::vector<UnitForm> forms;
  for (const program::Unit& unit : units) {
    forms.push_back(random_form(dice, program, unit.elements));
  }
  std::vector<int64_t> layer_state;  // bytes, by layer; 0: none
  for (size_t layer = 0; layer < program.layers.size(); ++layer) {
    layer_state.push_back(dice.chance(20) ? dice.between(1, 20) : 0);
  }
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    plan::RankHoldings& held = holdings.ranks[rank];
    if (dice.chance(30)) {
      held.values.push_back(plan::fixed_value("workspace", dice.between(0, 20)));
    }
    const std::set<int32_t> layers = layers_of(program, program.ranks[rank]);
    for (const int32_t layer : layers) {
      if (layer < program.loss_index() && layer_state[static_cast<size_t>(layer)] > 0) {
        held.values.push_back({{.kind = program::ValueKind::LayerState,
                                .layer = layer,
                                .bytes = layer_state[static_cast<size_t>(layer)]}});
      }
    }
    for (size_t i = 0; i < units.size(); ++i) {
      held.shared_bytes.push_back(dice.between(0, 9));
      const std::vector<int32_t> own = own_layers(units[i], layers);
      if (own.empty()) {
        continue;
      }
      const std::vector<plan::HeldValue> values =
          random_unit_values(dice,
                             program,
                             units[i],
                             static_cast<int32_t>(i),
                             forms[i],
                             program.replica_of(static_cast<int32_t>(rank)),
                             own);
      held.values.insert(held.values.end(), values.begin(), values.end());
    }
    if (!units.empty() && dice.chance(30)) {
      held.values.push_back(rank_state("history", dice.between(0, 20)));
    }
    if (dice.chance(30)) {
      held.values.push_back(plan::fixed_value("pages", dice.between(0, 20)));
    }
  }
  return holdings;
}

}  // namespace penstock::test
