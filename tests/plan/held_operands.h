// What instructions do with weights, gradients and state, in words that a test can compare.
#pragma once

#include <string>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/program/program.h"

namespace penstock::test {

// "forward 0.1" (layer and micro-batch), "loss.1", "gather [2].1 over data" (units), "add 0 [2]".
inline std::string subject_of(const program::Program& program,
                              const program::Instruction& instruction) {
  std::string text(op_name(instruction.op));
  text += instruction.scatters ? "-scatter" : "";
  text += instruction.layer < 0 ? "" : cat(" ", instruction.layer);
  if (is_collective(instruction.op) || !instruction.units.empty()) {
    std::vector<std::string> units;
    for (const int32_t unit : instruction.units) {
      units.push_back(std::to_string(unit));
    }
    text += cat(" [", join(units, ","), "]");
  }
  text += instruction.micro_batch < 0 ? "" : cat(".", instruction.micro_batch);
  if (instruction.group != program::kNoGroup) {
    text += cat(" over ", program.groups[static_cast<size_t>(instruction.group)].name);
  }
  return text;
}

// Values that are not of a layer and a micro-batch alone.
inline bool is_of_units(const program::Value& value) {
  const program::ValueKindInfo& info = program::info_of(value.kind);
  return !info.has_micro_batch || info.has_unit;
}

// "backward 1.0: reads m1, sets a1". Operands that are activations and the like are left out.
inline std::string operands_of(const program::Program& program,
                               const program::RankProgram& rank,
                               const program::Instruction& instruction) {
  const std::vector<std::string> names = value_names(rank);
  std::vector<std::string> parts;
  const auto add = [&](const char* verb, const std::vector<program::ValueId>& ids) {
    std::string part;
    for (const program::ValueId id : ids) {
      part += is_of_units(rank.value(id)) ? cat(" ", names[static_cast<size_t>(id)]) : "";
    }
    if (!part.empty()) {
      parts.push_back(verb + part);
    }
  };
  add("reads", instruction.reads);
  add("makes", instruction.makes);
  add("sets", instruction.sets);
  add("updates", instruction.updates);
  add("frees", instruction.frees);
  return subject_of(program, instruction) + (parts.empty() ? "" : ": " + join(parts, ", "));
}

// A line for each instruction, without those that move or drop activations.
inline std::vector<std::string> operand_lines(const program::Program& program, size_t rank) {
  std::vector<std::string> lines;
  for (const program::Instruction& one : program.ranks[rank].instructions) {
    const bool drops_others =
        one.op == program::Op::Drop && operands_of(program, program.ranks[rank], one) == "drop";
    if (!is_transfer(one.op) && !drops_others) {
      lines.push_back(operands_of(program, program.ranks[rank], one));
    }
  }
  return lines;
}

}  // namespace penstock::test
