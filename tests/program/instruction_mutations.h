// Changes of one field of an instruction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "program/list_mutations.h"
#include "program/mutation.h"

namespace penstock::test {

// Whether an op has a use for a field that not all have.
inline bool takes(program::Op op, std::string_view field) {
  using program::Op;
  const bool is_at_layer = op == Op::Forward || op == Op::Backward || op == Op::BackwardInput ||
                           op == Op::BackwardWeight;
  const bool is_message = op == Op::Send || op == Op::Receive;
  const bool is_of_units = op == Op::Gather || op == Op::Reduce;
  const bool is_exchange = is_of_units || op == Op::Exchange || op == Op::Merge;
  if (field == "layer") {
    return is_at_layer || is_message || op == Op::Add;
  }
  if (field == "element") {
    return is_message;
  }
  if (field == "units") {
    return is_of_units || op == Op::Add || op == Op::Step;
  }
  if (field == "micro_batch") {
    return is_at_layer || op == Op::Loss || is_message || is_of_units;
  }
  if (field == "keep") {
    return op == Op::Forward;
  }
  if (field == "scatters") {
    return op == Op::Reduce;
  }
  if (field == "sent_bytes") {
    return op == Op::Send || is_exchange;
  }
  return field != "group" || is_exchange;
}

// An instruction that takes the field; now and then one that does not.
class FieldChange {
 public:
  FieldChange(program::Program& program, Dice& dice, std::string field)
      : picker_(program, dice), field_(std::move(field)) {
    const bool wants_it = dice.chance(85);
    place_ = picker_.instruction([&](const auto&, const program::Instruction& one) {
      return !wants_it || takes(one.op, field_);
    });
    if (!place_) {  // no instruction of the program has a use for it
      place_ = picker_.instruction();
    }
  }

  bool is_none() const { return !place_; }
  program::Instruction& instruction() const { return place_->instruction(); }
  Picker& picker() { return picker_; }
  Mutation named(std::string what = "") const {
    const program::Instruction& one = instruction();
    return {.subject = name_of(one),
            .field = field_,
            .what = std::move(what),
            .has_no_use = !takes(one.op, field_)};
  }

 private:
  Picker picker_;
  const std::string field_;
  std::optional<Picker::Place> place_;
};

inline std::optional<Mutation> change_op(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).instruction();
  program::Instruction& one = place->instruction();
  Mutation mutation{name_of(one), "op"};
  const auto was = static_cast<int64_t>(one.op);
  const int64_t to = dice.between(0, static_cast<int64_t>(program::kNumOps) - 2);
  one.op = static_cast<program::Op>(to + (to >= was ? 1 : 0));
  mutation.what = cat("to ", name_of(one));
  return mutation;
}

inline std::optional<Mutation> change_layer(program::Program& program, Dice& dice) {
  FieldChange change(program, dice, "layer");
  int32_t& layer = change.instruction().layer;
  layer = change.picker().another(layer, program.loss_index() + 1);
  return change.named(cat("to ", layer));
}

inline std::optional<Mutation> change_element(program::Program& program, Dice& dice) {
  FieldChange change(program, dice, "element");
  if (change.is_none()) {
    return std::nullopt;
  }
  int32_t& element = change.instruction().element;
  element = change.picker().another(element, static_cast<int32_t>(program.carried.size()));
  return change.named(cat("to ", element));
}

inline std::optional<Mutation> change_units(program::Program& program, Dice& dice) {
  FieldChange change(program, dice, "units");
  std::vector<int32_t>& units = change.instruction().units;
  const std::vector<int32_t> before = units;
  const auto count = static_cast<int32_t>(program.units.size());
  const int64_t how = dice.between(0, 3);
  if (how == 0 && !units.empty()) {
    units.erase(units.begin() + static_cast<int64_t>(change.picker().index(units.size())));
  } else if (how == 1 && !units.empty()) {
    int32_t& unit = change.picker().one_of(units);
    unit = change.picker().another(unit, count);
  } else if (how == 2 && units.size() > 1) {
    std::reverse(units.begin(), units.end());
  } else {
    units.push_back(change.picker().another(-2, count));
    std::sort(units.begin(), units.end());
  }
  return before == units ? std::nullopt : std::optional(change.named());
}

inline std::optional<Mutation> change_micro_batch(program::Program& program, Dice& dice) {
  FieldChange change(program, dice, "micro_batch");
  int32_t& micro_batch = change.instruction().micro_batch;
  micro_batch = change.picker().another(micro_batch, program.micro_batches);
  return change.named(cat("to ", micro_batch));
}

inline std::optional<Mutation> change_keep(program::Program& program, Dice& dice) {
  FieldChange change(program, dice, "keep");
  int32_t& keep = change.instruction().keep;
  keep = change.picker().another(keep, 3);
  return change.named(cat("to ", keep));
}

inline std::optional<Mutation> change_group(program::Program& program, Dice& dice) {
  FieldChange change(program, dice, "group");
  if (change.is_none()) {
    return std::nullopt;
  }
  int32_t& group = change.instruction().group;
  group = change.picker().another(group, static_cast<int32_t>(program.groups.size()));
  return change.named(cat("to ", group));
}

inline std::optional<Mutation> change_scatters(program::Program& program, Dice& dice) {
  FieldChange change(program, dice, "scatters");
  if (change.is_none()) {
    return std::nullopt;
  }
  bool& scatters = change.instruction().scatters;
  scatters = !scatters;
  return change.named();
}

inline std::optional<Mutation> change_sent_bytes(program::Program& program, Dice& dice) {
  FieldChange change(program, dice, "sent_bytes");
  if (change.is_none()) {
    return std::nullopt;
  }
  int64_t& bytes = change.instruction().sent_bytes;
  bytes += dice.chance(50) ? 1 : -dice.between(1, bytes + 1);
  return change.named();
}

// ---- Operands

struct OperandList {
  const char* name;
  std::vector<program::ValueId> program::Instruction::*list;
};
inline constexpr OperandList kOperandLists[] = {{"reads", &program::Instruction::reads},
                                                {"makes", &program::Instruction::makes},
                                                {"sets", &program::Instruction::sets},
                                                {"updates", &program::Instruction::updates},
                                                {"frees", &program::Instruction::frees}};

template <int kList>
std::optional<Mutation> remove_operand(program::Program& program, Dice& dice) {
  const auto [name, list] = kOperandLists[kList];
  Picker picker(program, dice);
  const auto place = picker.instruction(
      [list = list](const auto&, const auto& one) { return !(one.*list).empty(); });
  if (!place) {
    return std::nullopt;
  }
  program::Instruction& one = place->instruction();
  const auto at = static_cast<int64_t>(picker.index((one.*list).size()));
  const program::Value& value = place->rank->value((one.*list)[static_cast<size_t>(at)]);
  Mutation mutation{name_of(one), cat(name, " -"), letter_of(value.kind)};
  (one.*list).erase((one.*list).begin() + at);
  return mutation;
}

template <int kList>
std::optional<Mutation> add_operand(program::Program& program, Dice& dice) {
  const auto [name, list] = kOperandLists[kList];
  Picker picker(program, dice);
  const auto place = picker.instruction();
  if (place->rank->values.empty()) {
    return std::nullopt;
  }
  program::Instruction& one = place->instruction();
  const auto id = static_cast<program::ValueId>(picker.index(place->rank->values.size()));
  (one.*list).push_back(id);
  return Mutation{.subject = name_of(one),
                  .field = cat(name, " +"),
                  .what = letter_of(place->rank->value(id).kind)};
}

// By one of the same kind half of the time.
template <int kList>
std::optional<Mutation> replace_operand(program::Program& program, Dice& dice) {
  const auto [name, list] = kOperandLists[kList];
  Picker picker(program, dice);
  const auto place = picker.instruction(
      [list = list](const auto&, const auto& one) { return !(one.*list).empty(); });
  if (!place) {
    return std::nullopt;
  }
  program::Instruction& one = place->instruction();
  program::ValueId& id = picker.one_of(one.*list);
  const program::Value& was = place->rank->value(id);
  std::vector<program::ValueId> others;
  const bool is_same_kind = dice.chance(50);
  for (size_t i = 0; i < place->rank->values.size(); ++i) {
    const auto other = static_cast<program::ValueId>(i);
    if (other != id && (!is_same_kind || place->rank->value(other).kind == was.kind)) {
      others.push_back(other);
    }
  }
  if (others.empty()) {
    return std::nullopt;
  }
  id = picker.one_of(others);
  const program::Value& is = place->rank->value(id);
  return Mutation{.subject = name_of(one),
                  .field = cat(name, " ~"),
                  .what = cat(letter_of(was.kind), " by ", letter_of(is.kind)),
                  .is_exchange_of_equals = are_alike(was, is)};
}

// From one list to another: read instead of changed, set instead of updated.
inline std::optional<Mutation> move_operand(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  const auto place = picker.instruction([](const auto&, const auto& one) {
    return !one.reads.empty() || !one.makes.empty() || !one.sets.empty() || !one.updates.empty();
  });
  if (!place) {
    return std::nullopt;
  }
  program::Instruction& one = place->instruction();
  size_t from = picker.index(4);
  while ((one.*kOperandLists[from].list).empty()) {
    from = picker.index(4);
  }
  // Between reads, sets and updates most of the time.
  size_t to = dice.chance(90) ? std::vector<size_t>{0, 2, 3}[picker.index(3)] : 1;
  if (to == from) {
    to = from == 2 ? 3 : 2;
  }
  auto& source = one.*kOperandLists[from].list;
  const auto at = static_cast<int64_t>(picker.index(source.size()));
  const program::ValueId id = source[static_cast<size_t>(at)];
  source.erase(source.begin() + at);
  (one.*kOperandLists[to].list).push_back(id);
  return Mutation{name_of(one),
                  cat(kOperandLists[from].name, " to other"),
                  cat(letter_of(place->rank->value(id).kind), " to ", kOperandLists[to].name)};
}

inline std::optional<Mutation> change_order_of_operands(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  const auto place =
      picker.instruction([](const auto&, const auto& one) { return one.reads.size() > 1; });
  if (!place) {
    return std::nullopt;
  }
  std::reverse(place->instruction().reads.begin(), place->instruction().reads.end());
  return Mutation{name_of(place->instruction()), "reads order"};
}

// ---- Where it runs, and what it takes

inline std::optional<Mutation> change_resource_kind(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).instruction();
  program::ResourceKind& kind = place->instruction().resource.kind;
  const auto was = static_cast<int64_t>(kind);
  const int64_t to = dice.between(0, static_cast<int64_t>(program::kNumResourceKinds) - 2);
  kind = static_cast<program::ResourceKind>(to + (to >= was ? 1 : 0));
  return Mutation{name_of(place->instruction()), "resource kind"};
}

inline std::optional<Mutation> change_resource_index(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  const auto place = picker.instruction();
  int32_t& index = place->instruction().resource.index;
  index = picker.another(index, static_cast<int32_t>(program.ranks.size()) + 1);
  return Mutation{name_of(place->instruction()), "resource index", cat("to ", index)};
}

inline std::optional<Mutation> change_seconds(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).instruction();
  double& seconds = place->instruction().seconds;
  const int64_t how = dice.between(0, 2);
  seconds = how == 0 ? seconds + 1 : how == 1 ? -1 : std::numeric_limits<double>::quiet_NaN();
  return Mutation{name_of(place->instruction()), "seconds"};
}

inline std::optional<Mutation> change_working_bytes(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).instruction();
  int64_t& bytes = place->instruction().working_bytes;
  bytes += dice.chance(50) ? 1 : -dice.between(1, bytes + 1);
  return Mutation{name_of(place->instruction()), "working_bytes"};
}

inline std::vector<Mutator> instruction_mutators() {
  return {change_op,
          change_layer,
          change_element,
          change_units,
          change_micro_batch,
          change_keep,
          change_group,
          change_scatters,
          remove_operand<0>,
          remove_operand<1>,
          remove_operand<2>,
          remove_operand<3>,
          remove_operand<4>,
          add_operand<0>,
          add_operand<1>,
          add_operand<2>,
          add_operand<3>,
          add_operand<4>,
          replace_operand<0>,
          replace_operand<1>,
          replace_operand<2>,
          replace_operand<3>,
          replace_operand<4>,
          move_operand,
          move_operand,
          change_order_of_operands,
          change_resource_kind,
          change_resource_index,
          change_seconds,
          change_working_bytes,
          change_sent_bytes};
}

}  // namespace penstock::test
