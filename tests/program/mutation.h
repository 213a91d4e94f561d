// One thing changed in a program: what, and where. The changes themselves are in the files
// *_mutations.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/program/program.h"

#include "plan/random_chains.h"

namespace penstock::test {

struct Mutation {
  std::string subject;  // an op, a kind of value, or a part of the program
  std::string field;
  std::string what = {};    // for people
  bool has_no_use = false;  // the op or kind has no use for the field
  // It exchanges two runs of one and the same work, or two values that are made of the same.
  bool is_exchange_of_equals = false;
};

// Changes one thing; nothing where the program has no such thing.
using Mutator = std::optional<Mutation> (*)(program::Program&, Dice&);

// The same thing chosen with the same chance, whatever the program has most of.
class Picker {
 public:
  Picker(program::Program& program, Dice& dice) : program_(program), dice_(dice) {}

  size_t index(size_t count) {
    return static_cast<size_t>(dice_.between(0, static_cast<int64_t>(count) - 1));
  }
  template <typename T>
  T& one_of(std::vector<T>& list) {
    return list[index(list.size())];
  }
  template <typename T>
  const T& one_of(const std::vector<T>& list) {
    return list[index(list.size())];
  }
  program::RankProgram& rank() { return one_of(program_.ranks); }

  // Any number near the range of a field: -1, all that are in range, and one beyond; another than
  // it was.
  int32_t another(int32_t was, int32_t count) {
    const auto number = static_cast<int32_t>(dice_.between(-1, count));
    return number != was ? number : number < count ? number + 1 : -1;
  }

  struct Place {
    program::RankProgram* rank = nullptr;
    size_t at = 0;

    program::Instruction& instruction() const { return rank->instructions[at]; }
  };
  // An instruction of any op that the program has; of those that match.
  template <typename Matches>
  std::optional<Place> instruction(const Matches& matches) {
    std::vector<std::vector<Place>> by_op(program::kNumOps);
    for (program::RankProgram& rank : program_.ranks) {
      for (size_t i = 0; i < rank.instructions.size(); ++i) {
        if (matches(rank, rank.instructions[i])) {
          by_op[static_cast<size_t>(rank.instructions[i].op)].push_back({&rank, i});
        }
      }
    }
    return of_one_group(by_op);
  }
  std::optional<Place> instruction() {
    return instruction([](const auto&, const auto&) { return true; });
  }

  // A value of any kind that the program has.
  template <typename Matches>
  std::optional<Place> value(const Matches& matches) {
    std::vector<std::vector<Place>> by_kind(program::kNumValueKinds);
    for (program::RankProgram& rank : program_.ranks) {
      for (size_t i = 0; i < rank.values.size(); ++i) {
        if (matches(rank.values[i])) {
          by_kind[static_cast<size_t>(rank.values[i].kind)].push_back({&rank, i});
        }
      }
    }
    return of_one_group(by_kind);
  }

 private:
  std::optional<Place> of_one_group(std::vector<std::vector<Place>>& groups) {
    std::erase_if(groups, [](const auto& group) { return group.empty(); });
    if (groups.empty()) {
      return std::nullopt;
    }
    return one_of(one_of(groups));
  }

  program::Program& program_;
  Dice& dice_;
};

inline std::string letter_of(program::ValueKind kind) {
  return std::string(1, program::info_of(kind).letter);
}

// Two values that say the same of themselves: as good as each other.
inline bool are_alike(const program::Value& one, const program::Value& other) {
  return one.kind == other.kind && one.layer == other.layer && one.element == other.element &&
         one.unit == other.unit && one.micro_batch == other.micro_batch &&
         one.version == other.version;
}

}  // namespace penstock::test
