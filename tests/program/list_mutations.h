// Changes of a rank's list: instructions left out, done twice, exchanged, moved; values freed
// elsewhere.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/mutation.h"

namespace penstock::test {

inline std::string name_of(const program::Instruction& one) {
  return std::string(program::op_name(one.op));
}
inline bool does_the_same(const program::Instruction& a, const program::Instruction& b) {
  return a.op == b.op && a.layer == b.layer && a.element == b.element && a.units == b.units &&
         a.micro_batch == b.micro_batch;
}

inline std::optional<Mutation> drop_one(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).instruction();
  Mutation mutation{name_of(place->instruction()), "drop"};
  auto& list = place->rank->instructions;
  list.erase(list.begin() + static_cast<int64_t>(place->at));
  return mutation;
}

inline std::optional<Mutation> duplicate_one(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).instruction();
  const program::Instruction copy = place->instruction();
  auto& list = place->rank->instructions;
  list.insert(list.begin() + dice.between(0, static_cast<int64_t>(list.size())), copy);
  return Mutation{name_of(copy), "duplicate"};
}

inline std::optional<Mutation> swap_two(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).instruction();
  auto& list = place->rank->instructions;
  const auto last = static_cast<int64_t>(list.size()) - 1;
  const auto first = std::min(static_cast<int64_t>(place->at), last - 1);
  if (first < 0) {
    return std::nullopt;
  }
  // Neighbours half of the time: what is far apart seldom commutes.
  const int64_t second = dice.chance(50) ? first + 1 : dice.between(first + 1, last);
  program::Instruction& a = list[static_cast<size_t>(first)];
  program::Instruction& b = list[static_cast<size_t>(second)];
  Mutation mutation{name_of(a), "swap", cat(name_of(a), " with ", name_of(b))};
  mutation.is_exchange_of_equals = does_the_same(a, b);
  std::swap(a, b);
  return mutation;
}

inline std::optional<Mutation> move_one(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).instruction();
  auto& list = place->rank->instructions;
  program::Instruction one = std::move(place->instruction());
  list.erase(list.begin() + static_cast<int64_t>(place->at));
  const auto size = static_cast<int64_t>(list.size());
  const auto from = static_cast<int64_t>(place->at);
  // Near, anywhere, or to where weights move.
  const int64_t how = dice.between(0, 3);
  const auto step = std::find_if(list.begin() + dice.between(0, size), list.end(), [](auto& other) {
    return other.op == program::Op::Step;
  });
  const int64_t to = how < 2    ? std::clamp<int64_t>(from + dice.between(-3, 3), 0, size)
                     : how == 2 ? dice.between(0, size)
                                : std::min<int64_t>(step - list.begin() + 1, size);
  Mutation mutation{name_of(one), "move", cat("by ", to - from)};
  list.insert(list.begin() + to, std::move(one));
  if (to == from) {
    return std::nullopt;
  }
  return mutation;
}

// The likeliest mistake of a planner.
inline std::optional<Mutation> move_a_free(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).instruction([](const auto&, const auto& one) {
    return !one.frees.empty();
  });
  if (!place || place->rank->instructions.size() < 2) {
    return std::nullopt;
  }
  auto& list = place->rank->instructions;
  const auto from = static_cast<int64_t>(place->at);
  int64_t to = dice.between(0, static_cast<int64_t>(list.size()) - 2);
  to += to >= from ? 1 : 0;
  auto& frees = list[place->at].frees;
  const int64_t which = dice.between(0, static_cast<int64_t>(frees.size()) - 1);
  const program::ValueId id = frees[static_cast<size_t>(which)];
  frees.erase(frees.begin() + which);
  list[static_cast<size_t>(to)].frees.push_back(id);
  Mutation mutation{name_of(list[place->at]),
                    "move a free",
                    to < from ? "to an earlier instruction" : "to a later instruction"};
  if (list[place->at].op == program::Op::Drop && frees.empty()) {
    list.erase(list.begin() + from);  // a drop of nothing is no instruction
  }
  return mutation;
}

// Whether a rank may do one before the other as well: neither touches what the other changes, and
// they meet different peers.
inline bool commute(const program::Instruction& a, const program::Instruction& b) {
  const auto changes = [](const program::Instruction& one) {
    std::vector<program::ValueId> all;
    for (const auto* list : {&one.makes, &one.sets, &one.updates, &one.frees}) {
      all.insert(all.end(), list->begin(), list->end());
    }
    return all;
  };
  const auto touches = [](const program::Instruction& one, const auto& values) {
    return std::any_of(values.begin(), values.end(), [&](program::ValueId id) {
      return has(one.reads, id) || has(one.makes, id) || has(one.sets, id) ||
             has(one.updates, id) || has(one.frees, id);
    });
  };
  const bool are_of_one_group = a.group == b.group && a.group != program::kNoGroup;
  const bool are_of_one_channel = a.resource == b.resource && program::is_transfer(a.op);
  return !are_of_one_group && !are_of_one_channel && !touches(a, changes(b)) &&
         !touches(b, changes(a));
}

// All ranks in another order, which is as good for each by itself: only who waits for whom changes,
// and what memory holds.
inline std::optional<Mutation> reorder_all(program::Program& program, Dice& dice) {
  for (program::RankProgram& rank : program.ranks) {
    rank.limit_bytes = rank.host_limit_bytes = rank.disk_limit_bytes = 0;
    auto& list = rank.instructions;
    const auto last = static_cast<int64_t>(list.size()) - 1;
    for (int64_t i = dice.between(0, 4) * last; i > 0; --i) {
      const auto at = static_cast<size_t>(dice.between(0, last - 1));
      if (commute(list[at], list[at + 1])) {
        std::swap(list[at], list[at + 1]);
      }
    }
  }
  return Mutation{"program", "all in another order"};
}

inline std::vector<Mutator> list_mutators() {
  return {drop_one, duplicate_one, swap_two, move_one, move_a_free, reorder_all};
}

}  // namespace penstock::test
