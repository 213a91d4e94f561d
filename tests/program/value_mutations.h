// Changes of one field of a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "program/mutation.h"

namespace penstock::test {

// A field that some kinds have. Others are not to set it.
template <int32_t program::Value::*kField>
std::optional<Mutation> change_value_field(program::Program& program,
                                           Dice& dice,
                                           const char* name,
                                           bool program::ValueKindInfo::*has_it,
                                           int32_t count) {
  Picker picker(program, dice);
  const bool wants_it = dice.chance(65);
  const auto place = picker.value([&](const program::Value& value) {
    return !wants_it || program::info_of(value.kind).*has_it;
  });
  if (!place) {
    return std::nullopt;
  }
  program::Value& value = place->rank->values[place->at];
  value.*kField = picker.another(value.*kField, count);
  return Mutation{.subject = letter_of(value.kind),
                  .field = name,
                  .what = cat("to ", value.*kField),
                  .has_no_use = !(program::info_of(value.kind).*has_it)};
}

inline std::optional<Mutation> change_value_layer(program::Program& program, Dice& dice) {
  return change_value_field<&program::Value::layer>(
      program, dice, "layer", &program::ValueKindInfo::has_layer, program.loss_index() + 1);
}
inline std::optional<Mutation> change_value_element(program::Program& program, Dice& dice) {
  return change_value_field<&program::Value::element>(program,
                                                      dice,
                                                      "element",
                                                      &program::ValueKindInfo::has_element,
                                                      static_cast<int32_t>(program.carried.size()));
}
inline std::optional<Mutation> change_value_unit(program::Program& program, Dice& dice) {
  return change_value_field<&program::Value::unit>(program,
                                                   dice,
                                                   "unit",
                                                   &program::ValueKindInfo::has_unit,
                                                   static_cast<int32_t>(program.units.size()));
}
inline std::optional<Mutation> change_value_micro_batch(program::Program& program, Dice& dice) {
  return change_value_field<&program::Value::micro_batch>(program,
                                                          dice,
                                                          "micro_batch",
                                                          &program::ValueKindInfo::has_micro_batch,
                                                          program.micro_batches);
}
inline std::optional<Mutation> change_value_version(program::Program& program, Dice& dice) {
  return change_value_field<&program::Value::version>(
      program, dice, "version", &program::ValueKindInfo::has_version, program.updates);
}
inline std::optional<Mutation> change_value_label(program::Program& program, Dice& dice) {
  return change_value_field<&program::Value::label>(
      program, dice, "label", &program::ValueKindInfo::has_label, 2);
}

inline std::optional<Mutation> change_value_kind(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).value([](const auto&) { return true; });
  program::Value& value = place->rank->values[place->at];
  Mutation mutation{letter_of(value.kind), "kind"};
  const auto was = static_cast<int64_t>(value.kind);
  const int64_t to = dice.between(0, static_cast<int64_t>(program::kNumValueKinds) - 2);
  value.kind = static_cast<program::ValueKind>(to + (to >= was ? 1 : 0));
  // Half of the time it gets the fields of its new kind.
  if (dice.chance(50)) {
    const program::ValueKindInfo& info = program::info_of(value.kind);
    const auto fit = [&](int32_t& field, bool has_it, int32_t count) {
      field = !has_it      ? -1
              : field >= 0 ? field
                           : static_cast<int32_t>(dice.between(0, std::max(count, 0)));
    };
    fit(value.layer, info.has_layer, program.loss_index());
    fit(value.element, info.has_element, static_cast<int32_t>(program.carried.size()) - 1);
    fit(value.unit, info.has_unit, static_cast<int32_t>(program.units.size()) - 1);
    fit(value.micro_batch, info.has_micro_batch, program.micro_batches - 1);
    fit(value.version, info.has_version, program.updates - 1);
    fit(value.label, info.has_label, static_cast<int32_t>(place->rank->labels.size()) - 1);
    if (!info.has_unit || !info.is_persistent) {
      value.slices.clear();
    }
  }
  mutation.what = cat("to ", letter_of(value.kind));
  return mutation;
}

inline std::optional<Mutation> change_value_tier(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).value([](const auto&) { return true; });
  program::Value& value = place->rank->values[place->at];
  value.tier = static_cast<program::Tier>((static_cast<int64_t>(value.tier) + dice.between(1, 2)) %
                                          static_cast<int64_t>(program::kNumTiers));
  return Mutation{letter_of(value.kind), "tier", std::string(program::tier_name(value.tier))};
}

inline std::optional<Mutation> change_value_bytes(program::Program& program, Dice& dice) {
  const auto place = Picker(program, dice).value([](const auto&) { return true; });
  program::Value& value = place->rank->values[place->at];
  value.bytes += dice.chance(70) ? dice.between(1, 9) : -dice.between(1, value.bytes + 1);
  return Mutation{letter_of(value.kind), "bytes", cat("to ", value.bytes)};
}

// ---- Slices

inline bool is_sliced(const program::Value& value) {
  return !value.slices.empty();
}

inline std::optional<Mutation> shift_a_border(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  const auto place = picker.value(is_sliced);
  if (!place) {
    return std::nullopt;
  }
  program::Value& value = place->rank->values[place->at];
  program::Slice& slice = picker.one_of(value.slices);
  (dice.chance(50) ? slice.first : slice.end) += dice.chance(50) ? 1 : -1;
  return Mutation{letter_of(value.kind), "slices border"};
}

inline std::optional<Mutation> drop_a_slice(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  const auto place = picker.value(is_sliced);
  if (!place) {
    return std::nullopt;
  }
  program::Value& value = place->rank->values[place->at];
  value.slices.erase(value.slices.begin() +
                     static_cast<int64_t>(picker.index(value.slices.size())));
  return Mutation{letter_of(value.kind), "slices -"};
}

// One more: elsewhere, over others, or (of what is whole) the only one.
inline std::optional<Mutation> add_a_slice(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  const bool wants_unit = dice.chance(80);
  const auto place = picker.value([&](const program::Value& value) {
    const program::ValueKindInfo& info = program::info_of(value.kind);
    return !wants_unit || (info.has_unit && info.is_persistent);
  });
  if (!place) {
    return std::nullopt;
  }
  program::Value& value = place->rank->values[place->at];
  const int64_t elements =
      value.unit >= 0 ? program.units[static_cast<size_t>(value.unit)].elements : 2;
  const int64_t first = dice.between(0, elements);
  value.slices.push_back({first, dice.between(first, elements)});
  std::sort(value.slices.begin(), value.slices.end(), [](const auto& a, const auto& b) {
    return a.first < b.first;
  });
  const program::ValueKindInfo& info = program::info_of(value.kind);
  return Mutation{.subject = letter_of(value.kind),
                  .field = "slices +",
                  .has_no_use = !info.has_unit || !info.is_persistent};
}

// All that replicas of a stage have of a unit is cut elsewhere: harmless by itself.
inline std::optional<Mutation> shift_all_borders(program::Program& program, Dice& dice) {
  Picker picker(program, dice);
  const auto place = picker.value(
      [](const program::Value& value) { return is_sliced(value) && value.slices[0].first > 0; });
  if (!place) {
    return std::nullopt;
  }
  const program::Value& value = place->rank->values[place->at];
  const int64_t border = value.slices[0].first, to = border + (dice.chance(50) ? 1 : -1);
  const int32_t unit = value.unit;
  const auto number = static_cast<int32_t>(place->rank - program.ranks.data());
  for (int32_t rank = 0; rank < program.mesh.ranks(); ++rank) {
    if (program.stage_of(rank) != program.stage_of(number)) {
      continue;
    }
    for (program::Value& other : program.ranks[static_cast<size_t>(rank)].values) {
      for (program::Slice& slice : other.slices) {
        const bool is_of_unit = other.unit == unit;
        slice.first = is_of_unit && slice.first == border ? to : slice.first;
        slice.end = is_of_unit && slice.end == border ? to : slice.end;
      }
    }
  }
  return Mutation{letter_of(value.kind), "slices of all"};
}

inline std::vector<Mutator> value_mutators() {
  return {change_value_kind,
          change_value_layer,
          change_value_element,
          change_value_unit,
          change_value_micro_batch,
          change_value_version,
          change_value_label,
          change_value_tier,
          change_value_bytes,
          shift_a_border,
          drop_a_slice,
          add_a_slice,
          shift_all_borders};
}

}  // namespace penstock::test
