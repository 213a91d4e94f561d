#include "penstock/program/program_json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/strict_json.h"
#include "penstock/program/program_reader.h"

namespace penstock::program {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kVersionKey = "penstock_program";
// The program, its ranks, a rank, its instructions, one of them, what it makes, one value of that.
constexpr int kMaxDepth = 7;

std::string print_lines(const std::vector<std::string>& items) {
  return items.empty() ? "[]" : cat("[\n", join(items, ",\n"), "\n]");
}

// "x1.0:4096" -> ["x1.0",4096]
ordered_json size_json(const std::string& size) {
  const size_t colon = size.find(':');
  return {size.substr(0, colon), ordered_json::parse(size.substr(colon + 1))};
}

ordered_json sizes_json(const std::vector<std::string>& sizes) {
  ordered_json list = ordered_json::array();
  for (const std::string& size : sizes) {
    list.push_back(size_json(size));
  }
  return list;
}

ordered_json field_json(const Field& field) {
  switch (field.type) {
    case FieldType::Integer:
    case FieldType::Number:
      return ordered_json::parse(field.words[0]);
    case FieldType::Word:
      return field.words[0];
    case FieldType::Names:
      return field.words;
    case FieldType::Sizes:
      return sizes_json(field.words);
  }
  throw InternalError("no such type of field");
}

std::string print_layer(const LayerInfo& layer) {
  const ordered_json ways = spell_ways(layer);
  return cat("{\"name\":", spell_text(layer.name), ",\"ways\":", ways.dump(), "}");
}

std::string print_rank(const Program& program, const RankProgram& rank) {
  std::vector<std::string> residents;
  for (const Resident& resident : rank.residents) {
    residents.push_back(cat("[", spell_text(resident.name), ",", resident.bytes, "]"));
  }
  const std::vector<std::string> names = value_names(rank);
  std::vector<std::string> instructions;
  for (const Instruction& instruction : rank.instructions) {
    ordered_json object = {{"op", op_name(instruction.op)}};
    for (const Field& field : spell_fields(program, rank, names, instruction)) {
      object[field.name] = field_json(field);
    }
    instructions.push_back(object.dump());
  }
  const ordered_json limit =
      rank.limit_bytes == 0 ? ordered_json() : ordered_json(rank.limit_bytes);
  return cat("{\"limit\":",
             limit.dump(),
             ",\n\"residents\":[",
             join(residents, ","),
             "],\n\"given\":",
             sizes_json(spell_given(rank, names)).dump(),
             ",\n\"instructions\":",
             print_lines(instructions),
             "}");
}

std::string print(const Program& program) {
  std::vector<std::string> layers;
  for (const LayerInfo& layer : program.layers) {
    layers.push_back(print_layer(layer));
  }
  std::vector<std::string> ranks;
  for (const RankProgram& rank : program.ranks) {
    ranks.push_back(print_rank(program, rank));
  }
  const std::string updates = program.updates == 1 && !program.mixes_weights
                                  ? ""
                                  : cat(",\n\"updates\":",
                                        program.updates,
                                        ",\n\"mixes_weights\":",
                                        program.mixes_weights ? "true" : "false");
  std::vector<std::string> units;
  for (const Unit& unit : program.units) {
    units.push_back(cat("{\"name\":",
                        spell_text(unit.name),
                        ",\"layers\":[",
                        join(spell_layers(unit.layers), ","),
                        unit.forward_only.empty() ? "" : "],\"forward\":[",
                        join(spell_layers(unit.forward_only), ","),
                        "]}"));
  }
  const std::string replicas = !has_replicas(program)
                                   ? ""
                                   : cat(",\n\"replicas\":",
                                         program.replicas,
                                         ",\n\"shard\":\"",
                                         shard_name(program.shard),
                                         "\"",
                                         program.step_reduces ? ",\n\"step_reduces\":true" : "",
                                         ",\n\"units\":",
                                         print_lines(units));
  return cat("{\"",
             kVersionKey,
             "\":",
             kProgramVersion,
             ",\n\"micro_batches\":",
             program.micro_batches,
             updates,
             replicas,
             ",\n\"layers\":",
             print_lines(layers),
             ",\n\"ranks\":",
             print_lines(ranks),
             "}\n");
}

class JsonParser {
 public:
  explicit JsonParser(const std::string& origin) : origin_(origin) { reader_.set_place(origin); }

  Program parse(std::string_view text) {
    const json root = parse_strictly(text);
    require(root.is_object(), "the file", root, "an object");
    // First, for a later version may have other keys.
    reader_.read_version(number(kVersionKey, member(root, kVersionKey)));
    check_keys("a program",
               root,
               {kVersionKey,
                "micro_batches",
                "updates",
                "mixes_weights",
                "replicas",
                "shard",
                "step_reduces",
                "units",
                "layers",
                "ranks"});
    reader_.read_micro_batches(number("micro_batches", member(root, "micro_batches")));
    if (root.contains("updates") || root.contains("mixes_weights")) {
      const json& mixes = member(root, "mixes_weights");
      require(mixes.is_boolean(), "mixes_weights", mixes, "true or false");
      reader_.read_updates(number("updates", member(root, "updates")), mixes.get<bool>());
    }
    for (const json& layer : list("layers", member(root, "layers"))) {
      reader_.set_place(cat(origin_, ": layer ", reader_.program().layers.size()));
      read_layer(layer);
    }
    reader_.set_place(origin_);
    read_replicas(root);
    for (const json& rank : list("ranks", member(root, "ranks"))) {
      read_rank(rank, reader_.program().ranks.size());
    }
    return reader_.finish();
  }

 private:
  json parse_strictly(std::string_view text) const {
    reader_.check_size(text.size());
    try {
      return parse_strict_json(text, kMaxDepth);
    } catch (const ConfigError& error) {
      reader_.fail(error.what());
    }
  }

  void read_layer(const json& layer) {
    require(layer.is_object(), "a layer", layer, "an object");
    check_keys("a layer", layer, {"name", "ways"});
    reader_.read_layer(text("name", member(layer, "name")), names("ways", member(layer, "ways")));
  }

  void read_replicas(const json& root) {
    if (!root.contains("replicas") && !root.contains("shard") && !root.contains("units") &&
        !root.contains("step_reduces")) {
      return;
    }
    bool step_reduces = false;
    if (root.contains("step_reduces")) {
      const json& said = member(root, "step_reduces");
      require(said.is_boolean(), "step_reduces", said, "true or false");
      step_reduces = said.get<bool>();
    }
    reader_.read_replicas(number("replicas", member(root, "replicas")),
                          text("shard", member(root, "shard")),
                          step_reduces);
    for (const json& unit : list("units", member(root, "units"))) {
      reader_.set_place(cat(origin_, ": unit ", reader_.program().units.size()));
      read_unit(unit);
    }
    reader_.set_place(origin_);
  }

  void read_unit(const json& unit) {
    require(unit.is_object(), "a unit", unit, "an object");
    check_keys("a unit", unit, {"name", "layers", "forward"});
    reader_.read_unit(
        text("name", member(unit, "name")),
        numbers("layers", unit),
        unit.contains("forward") ? numbers("forward", unit) : std::vector<std::string>());
  }

  std::vector<std::string> numbers(const char* key, const json& object) const {
    std::vector<std::string> items;
    for (const json& item : list(key, member(object, key))) {
      items.push_back(number(cat("an item of ", key), item));
    }
    return items;
  }

  void read_rank(const json& rank, size_t number_of_rank) {
    const std::string place = cat(origin_, ": rank ", number_of_rank);
    reader_.set_place(place);
    require(rank.is_object(), "a rank", rank, "an object");
    check_keys("a rank", rank, {"limit", "residents", "given", "instructions"});
    const json& limit = member(rank, "limit");
    reader_.read_rank(limit.is_null() ? spell_limit(0) : number("limit", limit));
    for (const json& resident : list("residents", member(rank, "residents"))) {
      const auto [name, bytes] = pair("residents", resident);
      reader_.read_resident(name, bytes);
    }
    for (const std::string& size : sizes("given", member(rank, "given"))) {
      reader_.read_given(size);
    }
    size_t index = 0;
    for (const json& instruction : list("instructions", member(rank, "instructions"))) {
      reader_.set_place(cat(origin_, ": instruction ", index++, " of rank ", number_of_rank));
      read_instruction(instruction);
    }
    reader_.set_place(place);
  }

  void read_instruction(const json& instruction) {
    require(instruction.is_object(), "an instruction", instruction, "an object");
    const Op op = reader_.read_op(text("op", member(instruction, "op")));
    std::vector<Field> fields;
    for (const auto& [key, value] : instruction.items()) {
      if (key != "op") {
        Field field = reader_.read_field(op, key, fields);
        field.words = words(field, value);
        fields.push_back(std::move(field));
      }
    }
    reader_.read_instruction(op, fields);
  }

  std::vector<std::string> words(const Field& field, const json& value) const {
    switch (field.type) {
      case FieldType::Integer:
      case FieldType::Number:
        return {number(field.name, value)};
      case FieldType::Word:
        return {text(field.name, value)};
      case FieldType::Names:
        return names(field.name, value);
      case FieldType::Sizes:
        return sizes(field.name, value);
    }
    throw InternalError("no such type of field");
  }

  std::string number(const std::string& what, const json& value) const {
    require(value.is_number(), what, value, "a number");
    return value.dump();
  }

  std::string text(const std::string& what, const json& value) const {
    require(value.is_string(), what, value, "a string");
    return value.get<std::string>();
  }

  const json& list(const std::string& what, const json& value) const {
    require(value.is_array(), what, value, "an array");
    return value;
  }

  std::vector<std::string> names(const std::string& what, const json& value) const {
    std::vector<std::string> result;
    for (const json& item : list(what, value)) {
      result.push_back(text(cat("an item of ", what), item));
    }
    return result;
  }

  std::pair<std::string, std::string> pair(const std::string& what, const json& value) const {
    const std::string item = cat("an item of ", what);
    require(value.is_array() && value.size() == 2, item, value, "an array of a name and its bytes");
    return {text(item, value[0]), number(item, value[1])};
  }

  std::vector<std::string> sizes(const std::string& what, const json& value) const {
    std::vector<std::string> result;
    for (const json& item : list(what, value)) {
      const auto [name, bytes] = pair(what, item);
      result.push_back(cat(name, ":", bytes));
    }
    return result;
  }

  void require(bool condition,
               const std::string& what,
               const json& value,
               const char* wanted) const {
    if (!condition) {
      reader_.fail(cat(what, " is a JSON ", value.type_name(), "; it should be ", wanted));
    }
  }

  const json& member(const json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) {
      reader_.fail(cat("key ", key, " is missing"));
    }
    return *found;
  }

  void check_keys(const std::string& what,
                  const json& object,
                  const std::vector<std::string>& known) const {
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        reader_.fail_unknown(cat("key of ", what), key, known);
      }
    }
  }

  const std::string& origin_;
  ProgramReader reader_;
};

}  // namespace

std::string program_json(const Program& program) {
  std::string text = print(program);
  check_reads_back(program, text, [&] { return parse_program_json(text, "the written program"); });
  return text;
}

Program parse_program_json(std::string_view text, const std::string& origin) {
  return JsonParser(origin).parse(text);
}

}  // namespace penstock::program
