// Changes of one gather, reduce or exchange on all ranks that meet in it, and of work that is done twice: what
// a planner gets wrong, it gets wrong everywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/list_mutations.h"
#include "program/mutation.h"

namespace penstock::test {

// The gathers and reduces of a program, each with all ranks that come to it.
class Exchanges {
 public:
  explicit Exchanges(program::Program& program) {
    std::map<std::pair<int32_t, int32_t>, std::vector<std::vector<Picker::Place>>> by_group;
    for (int32_t number = 0; number < program.mesh.ranks(); ++number) {
      program::RankProgram& rank = program.ranks[static_cast<size_t>(number)];
      std::map<int32_t, size_t> counts;  // by group
      for (size_t i = 0; i < rank.instructions.size(); ++i) {
        const int32_t group = rank.instructions[i].group;
        if (group == program::kNoGroup) {
          continue;
        }
        const size_t k = counts[group]++;
        auto& all = by_group[{
            group, comm::colour(program.mesh, program.groups[static_cast<size_t>(group)], number)}];
        all.resize(std::max(all.size(), k + 1));
        all[k].push_back({&rank, i});
      }
    }
    for (auto& [group, all] : by_group) {
      list_.insert(list_.end(), all.begin(), all.end());
    }
  }

  // Any of them, with all of its places; squares, weights and gradients with the same chance.
  std::vector<Picker::Place> pick(Dice& dice) const {
    std::map<std::string, std::vector<size_t>> by_kind;
    for (size_t i = 0; i < list_.size(); ++i) {
      const program::Instruction& one = list_[i].front().instruction();
      by_kind[cat(name_of(one), one.units.size(), one.group, one.makes.size())].push_back(i);
    }
    if (by_kind.empty()) {
      return {};
    }
    auto kind = by_kind.begin();
    std::advance(kind, dice.between(0, static_cast<int64_t>(by_kind.size()) - 1));
    const auto which = dice.between(0, static_cast<int64_t>(kind->second.size()) - 1);
    return list_[kind->second[static_cast<size_t>(which)]];
  }

 private:
  std::vector<std::vector<Picker::Place>> list_;
};

inline std::optional<Mutation> drop_on_all(program::Program& program, Dice& dice) {
  const std::vector<Picker::Place> places = Exchanges(program).pick(dice);
  if (places.empty()) {
    return std::nullopt;
  }
  Mutation mutation{name_of(places.front().instruction()), "all: drop"};
  for (const Picker::Place& place : places) {
    auto& list = place.rank->instructions;
    list.erase(list.begin() + static_cast<int64_t>(place.at));
  }
  return mutation;
}

inline std::optional<Mutation> duplicate_on_all(program::Program& program, Dice& dice) {
  const std::vector<Picker::Place> places = Exchanges(program).pick(dice);
  if (places.empty()) {
    return std::nullopt;
  }
  for (const Picker::Place& place : places) {
    auto& list = place.rank->instructions;
    const program::Instruction copy = place.instruction();
    list.insert(list.begin() + static_cast<int64_t>(place.at), copy);
  }
  return Mutation{name_of(places.front().instruction()), "all: duplicate"};
}

// Each rank by as many instructions.
inline std::optional<Mutation> move_on_all(program::Program& program, Dice& dice) {
  const std::vector<Picker::Place> places = Exchanges(program).pick(dice);
  if (places.empty()) {
    return std::nullopt;
  }
  const int64_t by = dice.between(-6, 6);
  const std::string name = name_of(places.front().instruction());
  for (const Picker::Place& place : places) {
    auto& list = place.rank->instructions;
    const program::Instruction copy = place.instruction();
    list.erase(list.begin() + static_cast<int64_t>(place.at));
    list.insert(list.begin() + std::clamp<int64_t>(static_cast<int64_t>(place.at) + by,
                                                   0,
                                                   static_cast<int64_t>(list.size())),
                copy);
  }
  return Mutation{name, "all: move", cat("by ", by)};
}

inline std::optional<Mutation> change_field_on_all(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  const std::vector<Picker::Place> places = Exchanges(program).pick(dice);
  if (places.empty()) {
    return std::nullopt;
  }
  program::Instruction changed = places.front().instruction();
  const std::string name = name_of(changed);
  constexpr const char* fields[] = {"op", "units", "micro_batch", "group", "scatters", "resource"};
  const auto how = static_cast<size_t>(dice.between(0, 5));
  const bool is_line = changed.resource.kind == program::ResourceKind::Line;
  switch (how) {
    case 0:
      changed.op = changed.op == program::Op::Gather   ? program::Op::Reduce
                   : changed.op == program::Op::Reduce ? program::Op::Exchange
                                                       : program::Op::Gather;
      break;
    case 1:
      changed.units = {picker.another(changed.units.empty() ? -1 : changed.units[0],
                                      static_cast<int32_t>(program.units.size()))};
      break;
    case 2:
      changed.micro_batch = picker.another(changed.micro_batch, program.micro_batches);
      break;
    case 3:
      changed.group =
          picker.another(changed.group, static_cast<int32_t>(program.groups.size()) - 1);
      changed.resource.index = is_line ? std::max(changed.group, 0) : 0;
      break;
    case 4:
      changed.scatters = !changed.scatters;
      break;
    default:
      changed.resource = is_line ? program::Resource{}
                                 : program::Resource{program::ResourceKind::Line, changed.group};
      break;
  }
  for (const Picker::Place& place : places) {
    program::Instruction& one = place.instruction();
    one.op = changed.op;
    one.units = changed.units;
    one.micro_batch = changed.micro_batch;
    one.group = changed.group;
    one.scatters = changed.scatters;
    one.resource = changed.resource;
  }
  return Mutation{name, cat("all: ", fields[how])};
}

// Done again at once, with values of its own that are dropped after it: as planners recompute.
inline std::optional<Mutation> repeat_one(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).instruction([](const auto&, const auto& one) {
    return one.op != program::Op::Drop;
  });
  program::RankProgram& rank = *place->rank;
  rank.limit_bytes = rank.host_limit_bytes = rank.disk_limit_bytes = 0;
  program::Instruction copy = place->instruction();
  program::Instruction drop{.op = program::Op::Drop};
  copy.frees.clear();
  for (program::ValueId& id : copy.makes) {
    const program::Value value = rank.value(id);
    id = static_cast<program::ValueId>(rank.values.size());
    rank.values.push_back(value);
    drop.frees.push_back(id);
  }
  copy.working_bytes = std::max(copy.working_bytes, rank.bytes_of(copy.makes));
  // What an update has begun is added to.
  copy.updates.insert(copy.updates.end(), copy.sets.begin(), copy.sets.end());
  copy.sets.clear();
  const std::vector<program::ValueId> freed = std::exchange(place->instruction().frees, {});
  drop.frees.insert(drop.frees.end(), freed.begin(), freed.end());
  const Mutation mutation{name_of(copy), "repeat"};
  auto& list = rank.instructions;
  const auto after = list.insert(list.begin() + static_cast<int64_t>(place->at) + 1, copy);
  if (!drop.frees.empty()) {
    list.insert(after + 1, drop);
  }
  return mutation;
}

// Work, or a copy of the weights, between the steps of one update.
inline std::optional<Mutation> move_into_update(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  const auto step = picker.instruction([](const program::RankProgram& rank, const auto& one) {
    const auto next = &one + 1;
    return one.op == program::Op::Step &&
           next != rank.instructions.data() + rank.instructions.size() &&
           next->op == program::Op::Step;
  });
  if (!step) {
    return std::nullopt;
  }
  auto& list = step->rank->instructions;
  std::vector<size_t> others;
  for (size_t i = 0; i < list.size(); ++i) {
    const bool sees_weights = list[i].op == program::Op::Stash ||
                              list[i].op == program::Op::Forward ||
                              list[i].op == program::Op::Backward;
    if (sees_weights && (i + 8 > step->at && i < step->at + 8)) {
      others.push_back(i);
    }
  }
  if (others.empty()) {
    return std::nullopt;
  }
  const size_t from = picker.one_of(others);
  program::Instruction one = std::move(list[from]);
  Mutation mutation{name_of(one), "move into an update"};
  list.erase(list.begin() + static_cast<int64_t>(from));
  list.insert(list.begin() + static_cast<int64_t>(from < step->at ? step->at : step->at + 1),
              std::move(one));
  return mutation;
}

inline std::vector<Mutator> exchange_mutators() {
  return {drop_on_all,
          duplicate_on_all,
          move_on_all,
          change_field_on_all,
          change_field_on_all,
          repeat_one,
          move_into_update};
}

}  // namespace penstock::test
