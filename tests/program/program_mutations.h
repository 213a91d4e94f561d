// Changes of what a program says beside its lists: limits, what is held and given, units, groups,
// mesh.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/mutation.h"

namespace penstock::test {

template <int64_t program::RankProgram::*kLimit>
std::optional<Mutation> change_limit(program::Program& program, Dice& dice) {
  int64_t& limit = Picker(program, dice).rank().*kLimit;
  const int64_t how = dice.between(0, 3);
  limit = how == 0 ? 0 : how == 1 ? -1 : limit + (how == 2 ? 1 : -1);
  return Mutation{"rank",
                  kLimit == &program::RankProgram::limit_bytes        ? "limit_bytes"
                  : kLimit == &program::RankProgram::host_limit_bytes ? "host_limit_bytes"
                                                                      : "disk_limit_bytes",
                  cat("to ", limit)};
}

inline std::optional<Mutation> drop_a_label(program::Program& program, Dice& dice) {
  program::RankProgram& rank = Picker(program, dice).rank();
  if (rank.labels.empty()) {
    return std::nullopt;
  }
  rank.labels.pop_back();
  return Mutation{"rank", "labels"};
}

template <std::vector<program::ValueId> program::RankProgram::*kList>
std::optional<Mutation> change_list(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  program::RankProgram& rank = picker.rank();
  std::vector<program::ValueId>& list = rank.*kList;
  const std::string name = kList == &program::RankProgram::persistent ? "persistent" : "given";
  const int64_t how = dice.between(0, 2);
  if (how == 0 && !list.empty()) {
    const auto at = static_cast<int64_t>(picker.index(list.size()));
    const std::string kind = letter_of(rank.value(list[static_cast<size_t>(at)]).kind);
    list.erase(list.begin() + at);
    return Mutation{"rank", cat(name, " -"), kind};
  }
  if (how == 1 && !list.empty()) {
    list.push_back(picker.one_of(list));
    return Mutation{"rank", cat(name, " +"), "again"};
  }
  list.push_back(static_cast<program::ValueId>(picker.index(rank.values.size() + 1)));
  return Mutation{"rank", cat(name, " +")};
}

// A value that nobody makes.
inline std::optional<Mutation> add_a_value(program::Program& program, Dice& dice) {
  program::RankProgram& rank = Picker(program, dice).rank();
  rank.values.push_back({.layer = 0, .micro_batch = 0, .bytes = 1});
  return Mutation{"rank", "values +"};
}

// ---- Units

inline program::Unit* any_unit(program::Program& program, Dice& dice) {
  return program.units.empty() ? nullptr : &Picker(program, dice).one_of(program.units);
}

inline std::optional<Mutation> change_unit_layers(program::Program& program, Dice& dice) {
  program::Unit* const unit = any_unit(program, dice);
  if (unit == nullptr) {
    return std::nullopt;
  }
  const auto layer = static_cast<int32_t>(dice.between(-1, program.loss_index() + 1));
  const auto found = std::find(unit->layers.begin(), unit->layers.end(), layer);
  if (dice.chance(20) && unit->layers.size() > 1) {
    std::reverse(unit->layers.begin(), unit->layers.end());
    return Mutation{"unit", "layers ~", "out of order"};
  }
  if (found != unit->layers.end()) {
    unit->layers.erase(found);
    std::erase(unit->forward_only, layer);
    std::erase(unit->weight_too, layer);
    return Mutation{"unit", "layers -"};
  }
  unit->layers.insert(std::upper_bound(unit->layers.begin(), unit->layers.end(), layer), layer);
  return Mutation{"unit", "layers +"};
}

inline std::optional<Mutation> change_layer_list(program::Program& program,
                                                 Dice& dice,
                                                 std::vector<int32_t> program::Unit::*which,
                                                 const std::string& name) {
  program::Unit* const unit = any_unit(program, dice);
  if (unit == nullptr) {
    return std::nullopt;
  }
  const int32_t layer = dice.chance(80)
                            ? Picker(program, dice).one_of(unit->layers)
                            : static_cast<int32_t>(dice.between(-1, program.loss_index() + 1));
  std::vector<int32_t>& list = unit->*which;
  const auto found = std::find(list.begin(), list.end(), layer);
  if (found != list.end()) {
    list.erase(found);
    return Mutation{"unit", name + " -"};
  }
  list.insert(std::upper_bound(list.begin(), list.end(), layer), layer);
  return Mutation{"unit", name + " +"};
}
inline std::optional<Mutation> change_forward_only(program::Program& program, Dice& dice) {
  return change_layer_list(program, dice, &program::Unit::forward_only, "forward_only");
}
inline std::optional<Mutation> change_weight_too(program::Program& program, Dice& dice) {
  return change_layer_list(program, dice, &program::Unit::weight_too, "weight_too");
}

inline std::optional<Mutation> change_is_shared(program::Program& program, Dice& dice) {
  program::Unit* const unit = any_unit(program, dice);
  if (unit == nullptr) {
    return std::nullopt;
  }
  unit->is_shared = !unit->is_shared;
  return Mutation{"unit", "is_shared"};
}

inline std::optional<Mutation> change_is_frozen(program::Program& program, Dice& dice) {
  program::Unit* const unit = any_unit(program, dice);
  if (unit == nullptr) {
    return std::nullopt;
  }
  unit->is_frozen = !unit->is_frozen;
  return Mutation{"unit", unit->is_frozen ? "is_frozen +" : "is_frozen -"};
}

inline std::optional<Mutation> change_elements(program::Program& program, Dice& dice) {
  program::Unit* const unit = any_unit(program, dice);
  if (unit == nullptr) {
    return std::nullopt;
  }
  const int64_t was = unit->elements;
  unit->elements = dice.chance(30) ? dice.between(-1, 0) : was + (dice.chance(50) ? 1 : -1);
  return was == unit->elements ? std::nullopt : std::optional(Mutation{"unit", "elements"});
}

inline std::optional<Mutation> change_unit_name(program::Program& program, Dice& dice) {
  program::Unit* const unit = any_unit(program, dice);
  if (unit == nullptr) {
    return std::nullopt;
  }
  unit->name += "'";
  return Mutation{"unit", "name"};
}

inline std::optional<Mutation> change_units_of_program(program::Program& program, Dice& dice) {
  if (program.units.empty()) {
    return std::nullopt;
  }
  Picker picker(program, dice);
  if (dice.chance(50)) {
    program.units.erase(program.units.begin() +
                        static_cast<int64_t>(picker.index(program.units.size())));
    return Mutation{"program", "units -"};
  }
  program::Unit unit = picker.one_of(program.units);
  if (dice.chance(30)) {
    unit.layers.clear();
    unit.forward_only.clear();
    unit.weight_too.clear();
  }
  program.units.push_back(std::move(unit));
  return Mutation{"program", "units +"};
}

// ---- Carried elements

inline program::Carried* any_element(program::Program& program, Dice& dice) {
  return program.carried.empty() ? nullptr : &Picker(program, dice).one_of(program.carried);
}

inline std::optional<Mutation> change_element_name(program::Program& program, Dice& dice) {
  program::Carried* const element = any_element(program, dice);
  if (element == nullptr) {
    return std::nullopt;
  }
  const std::string other = Picker(program, dice).one_of(program.carried).name;
  element->name = dice.chance(30) ? "" : dice.chance(40) ? other : element->name + "'";
  return Mutation{"carried", "name", element->name};
}

inline std::optional<Mutation> change_element_born(program::Program& program, Dice& dice) {
  program::Carried* const element = any_element(program, dice);
  if (element == nullptr) {
    return std::nullopt;
  }
  element->born = Picker(program, dice).another(element->born, program.loss_index());
  return Mutation{"carried", "born", cat("to ", element->born)};
}

inline std::optional<Mutation> change_element_readers(program::Program& program, Dice& dice) {
  program::Carried* const element = any_element(program, dice);
  if (element == nullptr) {
    return std::nullopt;
  }
  std::vector<int32_t>& readers = element->readers;
  const auto layer = static_cast<int32_t>(dice.between(-1, program.loss_index() + 1));
  if (dice.chance(20) && readers.size() > 1) {
    std::reverse(readers.begin(), readers.end());
    return Mutation{"carried", "readers ~"};
  }
  if (const auto found = std::find(readers.begin(), readers.end(), layer); found != readers.end()) {
    readers.erase(found);
    return Mutation{"carried", "readers -"};
  }
  readers.insert(std::upper_bound(readers.begin(), readers.end(), layer), layer);
  return Mutation{"carried", "readers +"};
}

inline std::optional<Mutation> change_has_gradient(program::Program& program, Dice& dice) {
  program::Carried* const element = any_element(program, dice);
  if (element == nullptr) {
    return std::nullopt;
  }
  element->has_gradient = !element->has_gradient;
  return Mutation{"carried", "has_gradient"};
}

inline std::optional<Mutation> change_elements_of_program(program::Program& program, Dice& dice) {
  if (program.carried.empty()) {
    return std::nullopt;
  }
  Picker picker(program, dice);
  if (dice.chance(50)) {
    program.carried.erase(program.carried.begin() +
                          static_cast<int64_t>(picker.index(program.carried.size())));
    return Mutation{"program", "carried -"};
  }
  program::Carried element = picker.one_of(program.carried);
  element.name += "'";
  program.carried.push_back(std::move(element));
  return Mutation{"program", "carried +"};
}

// ---- Groups and mesh

inline std::optional<Mutation> change_group_axes(program::Program& program, Dice& dice) {
  if (program.groups.empty()) {
    return std::nullopt;
  }
  comm::RankGroup& group = Picker(program, dice).one_of(program.groups);
  const comm::AxisSet was = group.axes;
  const comm::Axis axis = comm::kAxes[static_cast<size_t>(dice.between(0, 3))];
  group.axes = {};
  for (const comm::Axis one : comm::kAxes) {
    if (was.contains(one) != (one == axis)) {
      group.axes = group.axes | one;
    }
  }
  return Mutation{"group", "axes"};
}

inline std::optional<Mutation> change_group_stages(program::Program& program, Dice& dice) {
  if (program.groups.empty()) {
    return std::nullopt;
  }
  Picker picker(program, dice);
  std::vector<int32_t>& stages = picker.one_of(program.groups).stages;
  const auto stage = static_cast<int32_t>(dice.between(0, program.mesh.pipeline));
  const auto found = std::find(stages.begin(), stages.end(), stage);
  if (found != stages.end()) {
    stages.erase(found);
  } else {
    stages.insert(std::upper_bound(stages.begin(), stages.end(), stage), stage);
  }
  return Mutation{"group", "stages"};
}

inline std::optional<Mutation> change_group_name(program::Program& program, Dice& dice) {
  if (program.groups.empty()) {
    return std::nullopt;
  }
  Picker(program, dice).one_of(program.groups).name += "'";
  return Mutation{"group", "name"};
}

inline std::optional<Mutation> drop_a_group(program::Program& program, Dice&) {
  if (program.groups.empty()) {
    return std::nullopt;
  }
  program.groups.erase(program.groups.begin());
  return Mutation{"program", "groups -"};
}

inline std::optional<Mutation> change_mesh(program::Program& program, Dice& dice) {
  const comm::Mesh was = program.mesh;
  int32_t comm::Mesh::*axes[] = {
      &comm::Mesh::data, &comm::Mesh::pipeline, &comm::Mesh::tensor, &comm::Mesh::context};
  if (dice.chance(70)) {  // as many ranks as before
    std::swap(program.mesh.*axes[dice.between(0, 3)], program.mesh.*axes[dice.between(0, 3)]);
  } else {
    int32_t& degree = program.mesh.*axes[dice.between(0, 3)];
    degree += dice.chance(50) ? 1 : -1;
  }
  return program.mesh == was ? std::nullopt : std::optional(Mutation{"program", "mesh"});
}

// ---- The program itself

inline std::optional<Mutation> change_shard(program::Program& program, Dice& dice) {
  const auto was = static_cast<int64_t>(program.shard);
  program.shard = static_cast<program::Shard>((was + dice.between(1, 3)) % 4);
  return Mutation{"program", "shard"};
}
inline std::optional<Mutation> change_is_apart(program::Program& program, Dice&) {
  program.is_apart = !program.is_apart;
  return Mutation{"program", "is_apart"};
}
inline std::optional<Mutation> change_updates(program::Program& program, Dice& dice) {
  program.updates += dice.chance(50) ? 1 : -1;
  return Mutation{"program", "updates"};
}
inline std::optional<Mutation> change_micro_batches(program::Program& program, Dice& dice) {
  program.micro_batches += dice.chance(50) ? 1 : -1;
  return Mutation{"program", "micro_batches"};
}
inline std::optional<Mutation> change_mixes_weights(program::Program& program, Dice&) {
  program.mixes_weights = !program.mixes_weights;
  return Mutation{"program", "mixes_weights"};
}
inline std::optional<Mutation> swap_ranks(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  const size_t one = picker.index(program.ranks.size()), two = picker.index(program.ranks.size());
  std::swap(program.ranks[one], program.ranks[two]);
  return one == two ? std::nullopt : std::optional(Mutation{"program", "ranks"});
}
inline std::optional<Mutation> drop_a_rank(program::Program& program, Dice&) {
  program.ranks.pop_back();
  return Mutation{"program", "ranks -"};
}

inline std::optional<Mutation> change_layers(program::Program& program, Dice& dice) {
  if (dice.chance(50)) {
    program.layers.pop_back();
    return Mutation{"program", "layers -"};
  }
  program.layers.push_back(program.layers.back());
  return Mutation{"program", "layers +"};
}
inline std::optional<Mutation> change_modes(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  std::vector<program::SaveMode>& modes = picker.one_of(program.layers).modes;
  if (modes.empty()) {  // an evaluation has no use for them
    return std::nullopt;
  }
  if (dice.chance(30)) {
    modes.pop_back();
    return Mutation{"layer", "modes -"};
  }
  program::SaveMode& mode = picker.one_of(modes);
  mode.needs_output = !mode.needs_output;
  return Mutation{"layer", mode.needs_output ? "needs_output +" : "needs_output -"};
}

inline std::vector<Mutator> program_mutators() {
  return {change_limit<&program::RankProgram::limit_bytes>,
          change_limit<&program::RankProgram::host_limit_bytes>,
          change_limit<&program::RankProgram::disk_limit_bytes>,
          drop_a_label,
          change_list<&program::RankProgram::persistent>,
          change_list<&program::RankProgram::given>,
          add_a_value,
          change_unit_layers,
          change_forward_only,
          change_weight_too,
          change_is_shared,
          change_is_frozen,
          change_elements,
          change_unit_name,
          change_units_of_program,
          change_element_name,
          change_element_born,
          change_element_readers,
          change_has_gradient,
          change_elements_of_program,
          change_group_axes,
          change_group_stages,
          change_group_name,
          drop_a_group,
          change_mesh,
          change_shard,
          change_is_apart,
          change_updates,
          change_micro_batches,
          change_mixes_weights,
          swap_ranks,
          drop_a_rank,
          change_layers,
          change_modes};
}

}  // namespace penstock::test
