#include "penstock/program/program_json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"
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

// "x1.0:4096" -> ["x1.0",4096], "o3:800@0-64/host" -> ["o3",800,"@0-64/host"]
ordered_json size_json(const std::string& size) {
  const size_t colon = size.find(':');
  const size_t where = std::min(size.find_first_of("@/", colon), size.size());
  ordered_json item = {size.substr(0, colon),
                       ordered_json::parse(size.substr(colon + 1, where - colon - 1))};
  if (where < size.size()) {
    item.push_back(size.substr(where));
  }
  return item;
}

ordered_json sizes_json(const std::vector<std::string>& sizes) {
  ordered_json list = ordered_json::array();
  for (const std::string& size : sizes) {
    list.push_back(size_json(size));
  }
  return list;
}

ordered_json numbers_json(const std::vector<std::string>& numbers) {
  ordered_json list = ordered_json::array();
  for (const std::string& number : numbers) {
    list.push_back(ordered_json::parse(number));
  }
  return list;
}

ordered_json field_json(const Field& field) {
  switch (field.type) {
    case FieldType::Integer:
    case FieldType::Number:
      return ordered_json::parse(field.words[0]);
    case FieldType::Integers:
      return numbers_json(field.words);
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
  const ordered_json modes = spell_modes(layer);
  return cat("{\"name\":", spell_text(layer.name), ",\"modes\":", modes.dump(), "}");
}

std::string print_carried(const Carried& element) {
  return cat("{\"name\":",
             spell_text(element.name),
             element.born < 0 ? "" : cat(",\"born\":", element.born),
             ",\"readers\":",
             numbers_json(spell_numbers(element.readers)).dump(),
             element.has_gradient ? ",\"gradient\":true" : "",
             "}");
}

std::string print_unit(const Unit& unit) {
  std::string out = cat("{\"name\":",
                        spell_text(unit.name),
                        ",\"layers\":",
                        numbers_json(spell_numbers(unit.layers)).dump());
  if (!unit.forward_only.empty()) {
    out += cat(",\"forward\":", numbers_json(spell_numbers(unit.forward_only)).dump());
  }
  if (!unit.weight_too.empty()) {
    out += cat(",\"weight\":", numbers_json(spell_numbers(unit.weight_too)).dump());
  }
  out += unit.is_shared ? ",\"shared\":true" : "";
  out += unit.is_frozen ? ",\"frozen\":true" : "";
  out += unit.elements > 0 ? cat(",\"elements\":", unit.elements) : "";
  return out + "}";
}

std::string print_group(const comm::RankGroup& group) {
  const ordered_json axes = spell_axes(group);
  std::string out = cat("{\"name\":", spell_text(group.name), ",\"axes\":", axes.dump());
  if (!group.stages.empty()) {
    out += cat(",\"stages\":", numbers_json(spell_numbers(group.stages)).dump());
  }
  return out + "}";
}

ordered_json held_json(const RankProgram& rank, const std::vector<std::string>& names) {
  ordered_json list = sizes_json(spell_sizes(rank.persistent, rank, names));
  for (size_t i = 0; i < rank.persistent.size(); ++i) {
    const Value& value = rank.value(rank.persistent[i]);
    if (info_of(value.kind).has_label) {
      const auto label = static_cast<size_t>(value.label);
      PENSTOCK_CHECK(label < rank.labels.size(), "no label ", value.label);
      if (list[i].size() == 2) {
        list[i].push_back("");
      }
      list[i].push_back(ordered_json::parse(spell_text(rank.labels[label])));
    }
  }
  return list;
}

std::string print_limit(int64_t limit_bytes) {
  return limit_bytes == 0 ? "null" : std::to_string(limit_bytes);
}

std::string print_rank(const Program& program, const RankProgram& rank) {
  const std::vector<std::string> names = value_names(rank);
  std::vector<std::string> instructions;
  for (const Instruction& instruction : rank.instructions) {
    ordered_json object = {{"op", op_name(instruction.op)}};
    for (const Field& field : spell_fields(program, rank, names, instruction)) {
      object[field.name] = field_json(field);
    }
    instructions.push_back(object.dump());
  }
  return cat("{\"limit\":",
             print_limit(rank.limit_bytes),
             rank.host_limit_bytes > 0 ? cat(",\"host\":", rank.host_limit_bytes) : "",
             rank.disk_limit_bytes > 0 ? cat(",\"disk\":", rank.disk_limit_bytes) : "",
             ",\n\"hold\":",
             held_json(rank, names).dump(),
             ",\n\"given\":",
             sizes_json(spell_sizes(rank.given, rank, names)).dump(),
             ",\n\"instructions\":",
             print_lines(instructions),
             "}");
}

template <typename T, typename Print>
std::string print_all(const std::vector<T>& items, const Print& print) {
  std::vector<std::string> lines;
  for (const T& item : items) {
    lines.push_back(print(item));
  }
  return print_lines(lines);
}

std::string print(const Program& program) {
  std::string out = cat(
      "{\"", kVersionKey, "\":", kProgramVersion, ",\n\"micro_batches\":", program.micro_batches);
  if (program.updates != 1 || program.mixes_weights) {
    out += cat(",\n\"updates\":",
               program.updates,
               ",\n\"mixes_weights\":",
               program.mixes_weights ? "true" : "false");
  }
  if (program.mesh != comm::Mesh()) {
    ordered_json mesh;
    for (const comm::Axis axis : comm::kAxes) {
      if (program.mesh.degree(axis) > 1) {
        mesh[std::string(comm::axis_name(axis))] = program.mesh.degree(axis);
      }
    }
    out += cat(",\n\"mesh\":", mesh.dump());
  }
  if (program.shard != Shard::None || program.is_apart) {
    out += cat(",\n\"shard\":\"", shard_name(program.shard), "\"");
    out += program.is_apart ? ",\n\"apart\":true" : "";
  }
  if (!program.groups.empty()) {
    out += cat(",\n\"groups\":", print_all(program.groups, print_group));
  }
  out += cat(",\n\"layers\":", print_all(program.layers, print_layer));
  if (!program.carried.empty()) {
    out += cat(",\n\"carried\":", print_all(program.carried, print_carried));
  }
  if (!program.units.empty()) {
    out += cat(",\n\"units\":", print_all(program.units, print_unit));
  }
  const auto print_one = [&](const RankProgram& rank) { return print_rank(program, rank); };
  return cat(out, ",\n\"ranks\":", print_all(program.ranks, print_one), "}\n");
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
                "mesh",
                "shard",
                "apart",
                "groups",
                "layers",
                "carried",
                "units",
                "ranks"});
    reader_.read_micro_batches(number("micro_batches", member(root, "micro_batches")));
    if (root.contains("updates") || root.contains("mixes_weights")) {
      const json& mixes = member(root, "mixes_weights");
      require(mixes.is_boolean(), "mixes_weights", mixes, "true or false");
      reader_.read_updates(number("updates", member(root, "updates")), mixes.get<bool>());
    }
    read_mesh(root);
    read_shard(root);
    read_all(
        root, "groups", "group", /*is_needed=*/false, [&](const json& one) { read_group(one); });
    read_all(
        root, "layers", "layer", /*is_needed=*/true, [&](const json& one) { read_layer(one); });
    read_all(root, "carried", "carried element", /*is_needed=*/false, [&](const json& one) {
      read_carried(one);
    });
    read_all(root, "units", "unit", /*is_needed=*/false, [&](const json& one) { read_unit(one); });
    for (const json& rank : list("ranks", member(root, "ranks"))) {
      read_rank(rank, reader_.program().ranks.size());
    }
    reader_.set_place(origin_);
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

  template <typename Read>
  void read_all(const json& root, const char* key, const char* what, bool is_needed, Read read) {
    if (!is_needed && !root.contains(key)) {
      return;
    }
    size_t index = 0;
    for (const json& one : list(key, member(root, key))) {
      reader_.set_place(cat(origin_, ": ", what, " ", index++));
      require(one.is_object(), cat("a ", what), one, "an object");
      read(one);
    }
    reader_.set_place(origin_);
  }

  void read_mesh(const json& root) {
    if (root.contains("mesh")) {
      const json& mesh = member(root, "mesh");
      require(mesh.is_object(), "mesh", mesh, "an object");
      for (const auto& [axis, degree] : mesh.items()) {
        reader_.read_axis(axis, number(axis, degree));
      }
    }
  }

  void read_shard(const json& root) {
    if (root.contains("shard") || root.contains("apart")) {
      const bool is_apart = root.contains("apart") && flag("apart", root);
      reader_.read_shard(text("shard", member(root, "shard")), is_apart);
    }
  }

  void read_group(const json& group) {
    check_keys("a group", group, {"name", "axes", "stages"});
    reader_.read_group(
        text("name", member(group, "name")),
        names("axes", member(group, "axes")),
        group.contains("stages") ? numbers("stages", group) : std::vector<std::string>());
  }

  void read_layer(const json& layer) {
    check_keys("a layer", layer, {"name", "modes"});
    reader_.read_layer(text("name", member(layer, "name")), names("modes", member(layer, "modes")));
  }

  void read_carried(const json& element) {
    check_keys("a carried element", element, {"name", "born", "readers", "gradient"});
    ProgramReader::CarriedWords words{.readers = numbers("readers", element)};
    if (element.contains("born")) {
      words.born = number("born", member(element, "born"));
    }
    words.has_gradient = element.contains("gradient") && flag("gradient", element);
    reader_.read_carried(text("name", member(element, "name")), words);
  }

  void read_unit(const json& unit) {
    check_keys(
        "a unit", unit, {"name", "layers", "forward", "weight", "shared", "frozen", "elements"});
    ProgramReader::UnitWords words{.layers = numbers("layers", unit)};
    if (unit.contains("forward")) {
      words.forward_only = numbers("forward", unit);
    }
    if (unit.contains("weight")) {
      words.weight_too = numbers("weight", unit);
    }
    words.is_shared = unit.contains("shared") && flag("shared", unit);
    words.is_frozen = unit.contains("frozen") && flag("frozen", unit);
    if (unit.contains("elements")) {
      words.elements = number("elements", member(unit, "elements"));
    }
    reader_.read_unit(text("name", member(unit, "name")), words);
  }

  bool flag(const char* key, const json& object) const {
    const json& said = member(object, key);
    require(said.is_boolean(), key, said, "true or false");
    return said.get<bool>();
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
    check_keys("a rank", rank, {"limit", "host", "disk", "hold", "given", "instructions"});
    const auto limit = [&](const char* key) {
      const json& said = member(rank, key);
      return said.is_null() ? spell_limit(0) : number(key, said);
    };
    reader_.read_rank({limit("limit"),
                       rank.contains("host") ? limit("host") : spell_limit(0),
                       rank.contains("disk") ? limit("disk") : spell_limit(0)});
    for (const json& held : list("hold", member(rank, "hold"))) {
      const bool has_label = held.is_array() && held.size() == 4;
      json item = held;
      if (has_label) {
        item.erase(3);
      }
      reader_.read_held(size("hold", item), has_label ? text("a label", held[3]) : "");
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
      case FieldType::Integers: {
        std::vector<std::string> items;
        for (const json& item : list(field.name, value)) {
          items.push_back(number(cat("an item of ", field.name), item));
        }
        return items;
      }
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

  // A value with its bytes, and where it lives.
  std::string size(const std::string& what, const json& value) const {
    const std::string item = cat("an item of ", what);
    require(value.is_array() && (value.size() == 2 || value.size() == 3),
            item,
            value,
            "an array of a name and its bytes");
    const std::string where = value.size() == 3 ? text(item, value[2]) : "";
    if (!where.empty() && !where.starts_with('@') && !where.starts_with('/')) {
      reader_.fail(cat(item,
                       " has ",
                       in_quotes(where),
                       " after its bytes; slices (@0-64) and a tier (/host) stand there"));
    }
    return cat(text(item, value[0]), ":", number(item, value[1]), where);
  }

  std::vector<std::string> sizes(const std::string& what, const json& value) const {
    std::vector<std::string> result;
    for (const json& item : list(what, value)) {
      result.push_back(size(what, item));
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
