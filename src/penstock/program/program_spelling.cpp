#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"
#include "penstock/base/units.h"
#include "penstock/program/program_fields.h"
#include "penstock/program/program_reader.h"

namespace penstock::program {

namespace {

template <typename T>
const T& at(const std::vector<T>& list, int32_t index, std::string_view what) {
  PENSTOCK_CHECK(index >= 0 && static_cast<size_t>(index) < list.size(),
                 "there is no ",
                 what,
                 " ",
                 index,
                 "; there are ",
                 list.size());
  return list[static_cast<size_t>(index)];
}

std::vector<std::string> spell_names(const std::vector<ValueId>& ids,
                                     const std::vector<std::string>& value_names) {
  std::vector<std::string> words;
  words.reserve(ids.size());
  for (const ValueId id : ids) {
    words.push_back(at(value_names, id, "value"));
  }
  return words;
}

std::string spell_keep(const Program& program, const Instruction& instruction) {
  if (instruction.keep == kKeepNothing) {
    return std::string(kNoMode);
  }
  return at(at(program.layers, instruction.layer, "layer").modes, instruction.keep, "save mode")
      .name;
}

using FieldWords = std::array<std::vector<std::string>, kFields.size()>;

// In the order of kFields.
FieldWords spell_words(const Program& program,
                       const RankProgram& rank,
                       const std::vector<std::string>& value_names,
                       const Instruction& instruction) {
  return {{{std::to_string(instruction.layer)},
           {std::to_string(instruction.element)},
           spell_numbers(instruction.units),
           {std::to_string(instruction.micro_batch)},
           {spell_keep(program, instruction)},
           {std::to_string(instruction.group)},
           {std::string(instruction.scatters ? kScatter : kAll)},
           spell_names(instruction.reads, value_names),
           spell_sizes(instruction.makes, rank, value_names),
           spell_names(instruction.sets, value_names),
           spell_names(instruction.updates, value_names),
           spell_names(instruction.frees, value_names),
           {spell_resource(instruction.resource)},
           {format_number(instruction.seconds)},
           {std::to_string(instruction.working_bytes)},
           {std::to_string(instruction.sent_bytes)}}};
}

}  // namespace

std::string spell_resource(const Resource& resource) {
  const ResourceRule& rule = kResources[static_cast<size_t>(resource.kind)];
  PENSTOCK_CHECK(rule.has_index || resource.index == 0, rule.name, " ", resource.index);
  return rule.has_index ? cat(rule.name, ":", resource.index) : std::string(rule.name);
}

std::vector<std::string> spell_sizes(const std::vector<ValueId>& ids,
                                     const RankProgram& rank,
                                     const std::vector<std::string>& value_names) {
  std::vector<std::string> words;
  words.reserve(ids.size());
  for (const ValueId id : ids) {
    const Value& value = at(rank.values, id, "value");
    std::string word = cat(at(value_names, id, "value"), ":", value.bytes);
    for (size_t i = 0; i < value.slices.size(); ++i) {
      word += cat(i == 0 ? "@" : "+", value.slices[i].first, "-", value.slices[i].end);
    }
    words.push_back(value.tier == Tier::Device ? word : cat(word, "/", tier_name(value.tier)));
  }
  return words;
}

std::string spell_limit(int64_t limit_bytes) {
  return limit_bytes == 0 ? std::string(kNoLimit) : std::to_string(limit_bytes);
}

std::vector<std::string> spell_modes(const LayerInfo& layer) {
  std::vector<std::string> words;
  for (const SaveMode& mode : layer.modes) {
    PENSTOCK_CHECK(
        is_mode_name(mode.name), "save mode ", in_quotes(mode.name), " of ", in_quotes(layer.name));
    words.push_back(cat(mode.name, mode.needs_output ? kNeedsOutput : ""));
  }
  return words;
}

std::vector<std::string> spell_numbers(const std::vector<int32_t>& numbers) {
  std::vector<std::string> words;
  for (const int32_t number : numbers) {
    words.push_back(std::to_string(number));
  }
  return words;
}

std::vector<std::string> spell_axes(const comm::RankGroup& group) {
  std::vector<std::string> words;
  for (const comm::Axis axis : comm::kAxes) {
    if (group.axes.contains(axis)) {
      words.emplace_back(comm::axis_name(axis));
    }
  }
  return words;
}

std::vector<Field> spell_fields(const Program& program,
                                const RankProgram& rank,
                                const std::vector<std::string>& value_names,
                                const Instruction& instruction) {
  PENSTOCK_CHECK(std::isfinite(instruction.seconds), "seconds ", instruction.seconds);
  const FieldWords words = spell_words(program, rank, value_names, instruction);
  const FieldWords defaults = spell_words(program, rank, value_names, {});
  std::vector<Field> fields;
  for (size_t i = 0; i < kFields.size(); ++i) {
    const FieldRule& rule = kFields[i];
    // A field that the instruction does not take is written if it is set: reading back refuses it.
    if ((rule.needed_by & bit(instruction.op)) != 0 || words[i] != defaults[i]) {
      fields.push_back({std::string(rule.name), rule.type, words[i]});
    }
  }
  return fields;
}

std::string spell_text(const std::string& text) {
  PENSTOCK_CHECK(is_valid_utf8(text), "not UTF-8: ", in_quotes(text));
  return nlohmann::json(text).dump();
}

void check_reads_back(const Program& program,
                      const std::string& written,
                      const std::function<Program()>& read) {
  if (written.size() > kMaxProgramBytes) {
    throw ConfigError(cat("the program is ",
                          format_bytes(static_cast<int64_t>(written.size())),
                          " long; files of up to ",
                          format_bytes(static_cast<int64_t>(kMaxProgramBytes)),
                          " can be read back; use fewer micro-batches or ranks"));
  }
  try {
    PENSTOCK_CHECK(read() == program, "values are not numbered as they are given and made");
  } catch (const ConfigError& error) {
    PENSTOCK_CHECK(false, error.what());
  }
}

}  // namespace penstock::program
