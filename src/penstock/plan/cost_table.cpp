#include "penstock/plan/cost_table.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/quote.h"
#include "penstock/base/strict_json.h"

namespace penstock::plan {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr double kMostBytes = 1e15;
constexpr double kMostBytesInAll = 1e18;  // what sums must not overflow
constexpr size_t kMostLayers = 100'000;

// One object of the file: knows where it stands, for messages, and which keys it may have.
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) {
      fail("is not an object");
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw ConfigError(cat(where_, " ", what));
  }

  bool has(const char* key) {
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      known_.push_back(key);
    }
    return object_.contains(key);
  }

  int64_t bytes(const char* key, std::optional<int64_t> otherwise, double least = 0) {
    const std::optional<double> value = number(key, otherwise.has_value());
    if (!value) {
      return *otherwise;
    }
    if (*value > kMostBytes) {
      fail(cat(key, " = ", object_[key].dump(), " is more than 1e15 bytes"));
    }
    if (*value != std::floor(*value) || *value < least) {
      fail(cat(key,
               " = ",
               object_[key].dump(),
               " is not a whole number of bytes",
               least < 0 ? "" : ", 0 or more"));
    }
    return static_cast<int64_t>(*value);
  }

  double rate(const char* key) {
    const double value = number(key, /*is_optional=*/true).value_or(0);
    if (!(value >= 0) || value > 1e18) {
      fail(cat(key, " = ", object_[key].dump(), " is not a number of bytes a second, 0 or more"));
    }
    return value;
  }

  double seconds(const char* key, std::optional<double> otherwise) {
    const std::optional<double> value = number(key, otherwise.has_value());
    if (!value) {
      return *otherwise;
    }
    if (!(*value >= 0) || *value > 1e12) {
      fail(cat(key, " = ", object_[key].dump(), " is not a time in seconds, 0 or more"));
    }
    return *value;
  }

  std::string text(const char* key, const std::string& otherwise) {
    if (!has(key)) {
      return otherwise;
    }
    if (!object_[key].is_string()) {
      fail(cat(key, " is not text"));
    }
    return object_[key].get<std::string>();
  }

  bool flag(const char* key, bool otherwise) {
    if (!has(key)) {
      return otherwise;
    }
    if (!object_[key].is_boolean()) {
      fail(cat(key, " is neither true nor false"));
    }
    return object_[key].get<bool>();
  }

  const json& list(const char* key) {
    if (!has(key)) {
      fail(cat("has no ", key));
    }
    if (!object_[key].is_array()) {
      fail(cat(key, " is not a list"));
    }
    return object_[key];
  }

  const json& at(const char* key) const { return object_[key]; }
  const std::string& where() const { return where_; }

  // After all reading: what is left over is a slip of the pen.
  void require_no_other_keys() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        const std::string suggestion = nearest(key, known_);
        fail(cat("has the unknown key ",
                 in_quotes(key),
                 suggestion.empty() ? cat("; there is ", join(known_, ", "))
                                    : cat("; did you mean ", suggestion, "?")));
      }
    }
  }

 private:
  std::optional<double> number(const char* key, bool is_optional) {
    if (!has(key)) {
      if (!is_optional) {
        fail(cat("has no ", key));
      }
      return std::nullopt;
    }
    if (!object_[key].is_number()) {
      fail(cat(key, " is not a number"));
    }
    return object_[key].get<double>();
  }

  const json& object_;
  std::string where_;
  std::vector<std::string> known_;
};

std::optional<double> sum_of_both(const LayerCost& layer) {
  const bool has_both = layer.backward_input_s >= 0 && layer.backward_weight_s >= 0;
  return has_both ? std::optional(layer.backward_input_s + layer.backward_weight_s) : std::nullopt;
}

SaveModeCost read_mode(Reader& reader, const LayerCost& layer) {
  SaveModeCost mode;
  mode.forward_s = reader.seconds("forward_s", layer.forward_s);
  mode.backward_s = reader.seconds("backward_s", sum_of_both(layer));
  mode.saved_bytes = reader.bytes("saved_bytes", std::nullopt);
  mode.forward_extra_bytes = reader.bytes("forward_extra_bytes", 0);
  mode.backward_extra_bytes = reader.bytes("backward_extra_bytes", 0, -kMostBytes);
  if (reader.has("backward_input_extra_bytes")) {
    mode.backward_input_extra_bytes =
        reader.bytes("backward_input_extra_bytes", std::nullopt, -kMostBytes);
  }
  mode.needs_output = reader.flag("needs_output", true);
  mode.recompute_s = reader.seconds("recompute_s", mode.forward_s);
  mode.recompute_extra_bytes = reader.bytes("recompute_extra_bytes", mode.forward_extra_bytes);
  if (mode.saved_bytes < layer.output_bytes) {
    reader.fail(cat("saved_bytes = ",
                    mode.saved_bytes,
                    " is less than output_bytes = ",
                    layer.output_bytes,
                    "; what is saved includes the output"));
  }
  // A backward holds at least what was there when it began, and what is there when it ends.
  const int64_t least = -std::min(layer.input_gradient(), layer.freed_by_backward(mode));
  if (mode.backward_extra_bytes < least) {
    reader.fail(cat("backward_extra_bytes = ",
                    mode.backward_extra_bytes,
                    " is below ",
                    least,
                    ", the most that can be free before the input's gradient is made"));
  }
  return mode;
}

std::string place(const std::string& origin, size_t index, const json& layer) {
  const bool is_named = layer.is_object() && layer.contains("name") && layer["name"].is_string();
  return cat(origin,
             ": layer ",
             index,
             is_named ? cat(" (", in_quotes(layer["name"].get<std::string>()), ")") : "");
}

void read_other_modes(Reader& reader, LayerCost& layer) {
  std::set<std::string> names{layer.modes.front().name};
  size_t index = 0;
  for (const json& item : reader.list("other_save_modes")) {
    Reader other(item, cat(reader.where(), ", other save mode ", index++));
    const std::string name = other.text("name", "");
    if (!program::is_mode_name(name) || !names.insert(name).second) {
      other.fail(cat("has the name ",
                     in_quotes(name),
                     "; each save mode has a name of its own: up to 64 letters, digits, - and _, "
                     "not \"nothing\""));
    }
    layer.modes.push_back(read_mode(other, layer));
    layer.modes.back().name = name;
    other.require_no_other_keys();
  }
}

// Tables of earlier versions call save modes ways.
json with_present_keys(json layer) {
  if (layer.is_object()) {
    for (const auto& [old_key, key] :
         {std::pair("way", "save_mode"), std::pair("other_ways", "other_save_modes")}) {
      if (layer.contains(old_key) && !layer.contains(key)) {
        layer[key] = std::move(layer[old_key]);
        layer.erase(old_key);
      }
    }
  }
  return layer;
}

LayerCost read_layer(const json& given, size_t index, const std::string& origin) {
  const json item = with_present_keys(given);
  Reader reader(item, place(origin, index, item));
  LayerCost layer;
  layer.name = reader.text("name", cat("layer ", index));
  layer.kind = reader.text("kind", "");
  layer.input_bytes = reader.bytes("input_bytes", std::nullopt);
  layer.output_bytes = reader.bytes("output_bytes", std::nullopt);
  layer.input_gradient_bytes = reader.bytes("input_gradient_bytes", layer.input_gradient_bytes);
  layer.output_gradient_bytes = reader.bytes("output_gradient_bytes", layer.output_gradient_bytes);
  layer.forward_s = reader.seconds("forward_s", std::nullopt);
  layer.backward_input_s = reader.seconds("backward_input_s", layer.backward_input_s);
  layer.backward_weight_s = reader.seconds("backward_weight_s", layer.backward_weight_s);
  layer.weight_state_bytes = reader.bytes("weight_state_bytes", layer.weight_state_bytes);
  layer.weight_extra_bytes = reader.bytes("weight_extra_bytes", 0);
  layer.modes.push_back(read_mode(reader, layer));
  SaveModeCost& first = layer.modes.front();
  first.name = reader.text("save_mode", "all");
  if (!program::is_mode_name(first.name)) {
    reader.fail(cat("save mode ",
                    in_quotes(first.name),
                    " is not a name: up to 64 letters, digits, - and _, not \"nothing\""));
  }
  first.forward_s = reader.seconds("keeping_forward_s", layer.forward_s);
  first.recompute_s = reader.seconds("recompute_s", first.forward_s);
  layer.forward_extra_bytes = reader.bytes("dropping_extra_bytes", first.forward_extra_bytes);
  if (reader.has("other_save_modes")) {
    read_other_modes(reader, layer);
  }
  layer.parameter_bytes = reader.bytes("parameter_bytes", 0);
  layer.gradient_bytes = reader.bytes("gradient_bytes", 0);
  layer.optimizer_bytes = reader.bytes("optimizer_bytes", 0);
  reader.require_no_other_keys();
  return layer;
}

LossCost read_loss(const json& item, const std::string& origin) {
  Reader reader(item, cat(origin, ": loss"));
  LossCost loss;
  loss.name = reader.text("name", loss.name);
  loss.seconds = reader.seconds("seconds", 0);
  loss.extra_bytes = reader.bytes("extra_bytes", 0);
  loss.parameter_bytes = reader.bytes("parameter_bytes", 0);
  loss.gradient_bytes = reader.bytes("gradient_bytes", 0);
  loss.optimizer_bytes = reader.bytes("optimizer_bytes", 0);
  reader.require_no_other_keys();
  return loss;
}

// A number of a layer; the loss comes after them.
int32_t read_layer_number(const json& item, const Reader& reader, const char* key, size_t end) {
  const bool is_whole = item.is_number_integer();
  if (!is_whole || item < 0 || item >= end) {
    reader.fail(cat(key, " = ", item.dump(), " is not the number of a layer, 0 to ", end - 1));
  }
  return item.get<int32_t>();
}

CarriedCost read_carried(const json& item,
                         size_t index,
                         size_t layers,
                         std::set<std::string>& names,
                         const std::string& origin) {
  Reader reader(item, cat(origin, ": carried element ", index));
  CarriedCost cost;
  program::Carried& element = cost.element;
  element.name = reader.text("name", cat("element ", index));
  if (element.name.empty() || !names.insert(element.name).second) {
    reader.fail(cat("has the name ", in_quotes(element.name), "; each has a name of its own"));
  }
  if (reader.has("born")) {
    element.born = read_layer_number(reader.at("born"), reader, "born", layers);
  }
  for (const json& one : reader.list("readers")) {
    const int32_t layer = read_layer_number(one, reader, "a reader", layers + 1);
    const int32_t before = element.readers.empty() ? element.born : element.readers.back();
    if (layer <= before) {
      reader.fail(cat("has the reader ",
                      layer,
                      " after layer ",
                      before,
                      "; readers come after the layer that makes it, and rise"));
    }
    element.readers.push_back(layer);
  }
  if (element.readers.empty() || element.readers == std::vector{element.born + 1}) {
    reader.fail("is read by no layer but the next; that is part of the layer's output");
  }
  cost.bytes = reader.bytes("bytes", std::nullopt);
  cost.gradient_bytes = reader.bytes("gradient_bytes", 0);
  element.has_gradient = cost.gradient_bytes > 0;
  if (element.has_gradient && element.born < 0) {
    reader.fail("comes with the batch (it has no born) and has gradient_bytes");
  }
  reader.require_no_other_keys();
  return cost;
}

void require_joined(const CostTable& table, const std::string& origin) {
  for (size_t i = 1; i < table.layers.size(); ++i) {
    const LayerCost& before = table.layers[i - 1];
    const LayerCost& layer = table.layers[i];
    const auto require_equal =
        [&](const char* in, int64_t in_bytes, const char* out, int64_t out_bytes) {
          if (in_bytes != out_bytes) {
            throw ConfigError(cat(origin,
                                  ": layer ",
                                  i,
                                  " (",
                                  in_quotes(layer.name),
                                  ") has ",
                                  in,
                                  " = ",
                                  in_bytes,
                                  ", but layer ",
                                  i - 1,
                                  " has ",
                                  out,
                                  " = ",
                                  out_bytes));
          }
        };
    require_equal("input_bytes", layer.input_bytes, "output_bytes", before.output_bytes);
    require_equal("input_gradient_bytes",
                  layer.input_gradient(),
                  "output_gradient_bytes",
                  before.output_gradient());
  }
}

// Every size of the table, as a bound of what a step can hold.
void require_no_overflow(const CostTable& table, const std::string& origin) {
  double sum = static_cast<double>(table.held_bytes() + table.target_bytes + table.carried_bytes());
  for (const LayerCost& layer : table.layers) {
    sum += static_cast<double>(layer.input_bytes + layer.output_bytes + layer.input_gradient() +
                               layer.output_gradient() + layer.forward_extra_bytes +
                               layer.weight_work_bytes());
    for (const SaveModeCost& mode : layer.modes) {
      sum += static_cast<double>(mode.saved_bytes + mode.forward_extra_bytes +
                                 std::abs(mode.backward_extra_bytes) + mode.recompute_extra_bytes);
    }
  }
  if (sum > kMostBytesInAll) {
    throw ConfigError(cat(origin, ": the sizes add up to more than 1e18 bytes"));
  }
}

CostTable read_table(const json& root, const std::string& origin) {
  Reader reader(root, cat(origin, ":"));
  CostTable table;
  table.description = reader.text("description", "");
  const json& layers = reader.list("layers");
  if (layers.empty() || layers.size() > kMostLayers) {
    reader.fail(cat("has ", layers.size(), " layers; 1 to ", kMostLayers, " are allowed"));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    table.layers.push_back(read_layer(layers[i], i, origin));
  }
  if (reader.has("carried")) {
    std::set<std::string> names;
    for (const json& item : reader.list("carried")) {
      table.carried.push_back(
          read_carried(item, table.carried.size(), layers.size(), names, origin));
    }
  }
  if (reader.has("loss")) {
    table.loss = read_loss(reader.at("loss"), origin);
  }
  table.target_bytes = reader.bytes("target_bytes", 0);
  if (reader.has("residents")) {
    size_t index = 0;
    for (const json& item : reader.list("residents")) {
      Reader resident(item, cat(origin, ": resident ", index++));
      table.held.push_back({resident.text("name", "state"), resident.bytes("bytes", std::nullopt)});
      resident.require_no_other_keys();
    }
  }
  table.clear_s = reader.seconds("clear_s", 0);
  table.step_s = reader.seconds("step_s", 0);
  table.step_extra_bytes = reader.bytes("step_extra_bytes", 0);
  table.link.latency_s = reader.seconds("link_latency_s", 0.0);
  table.link.bytes_per_s = reader.rate("link_bytes_per_s");
  reader.require_no_other_keys();
  require_joined(table, origin);
  require_no_overflow(table, origin);
  return table;
}

ordered_json mode_json(const SaveModeCost& mode) {
  ordered_json out{{"forward_s", mode.forward_s},
                   {"backward_s", mode.backward_s},
                   {"saved_bytes", mode.saved_bytes},
                   {"forward_extra_bytes", mode.forward_extra_bytes},
                   {"backward_extra_bytes", mode.backward_extra_bytes},
                   {"needs_output", mode.needs_output},
                   {"recompute_s", mode.recompute_s},
                   {"recompute_extra_bytes", mode.recompute_extra_bytes}};
  if (mode.backward_input_extra_bytes) {
    out["backward_input_extra_bytes"] = *mode.backward_input_extra_bytes;
  }
  return out;
}

ordered_json layer_json(const LayerCost& layer) {
  const SaveModeCost& first = layer.modes.front();
  ordered_json out{{"name", layer.name}, {"kind", layer.kind}};
  out.update(mode_json(first));
  out["forward_s"] = layer.forward_s;
  out["keeping_forward_s"] = first.forward_s;
  out["dropping_extra_bytes"] = layer.forward_extra_bytes;
  out["save_mode"] = first.name;
  out["input_bytes"] = layer.input_bytes;
  out["output_bytes"] = layer.output_bytes;
  if (layer.input_gradient_bytes >= 0) {
    out["input_gradient_bytes"] = layer.input_gradient_bytes;
  }
  if (layer.output_gradient_bytes >= 0) {
    out["output_gradient_bytes"] = layer.output_gradient_bytes;
  }
  out["parameter_bytes"] = layer.parameter_bytes;
  out["gradient_bytes"] = layer.gradient_bytes;
  out["optimizer_bytes"] = layer.optimizer_bytes;
  if (layer.backward_input_s >= 0) {
    out["backward_input_s"] = layer.backward_input_s;
  }
  if (layer.backward_weight_s >= 0) {
    out["backward_weight_s"] = layer.backward_weight_s;
  }
  if (layer.weight_state_bytes >= 0) {
    out["weight_state_bytes"] = layer.weight_state_bytes;
  }
  if (layer.weight_extra_bytes > 0) {
    out["weight_extra_bytes"] = layer.weight_extra_bytes;
  }
  if (layer.modes.size() > 1) {
    out["other_save_modes"] = ordered_json::array();
    for (size_t i = 1; i < layer.modes.size(); ++i) {
      ordered_json other{{"name", layer.modes[i].name}};
      other.update(mode_json(layer.modes[i]));
      out["other_save_modes"].push_back(std::move(other));
    }
  }
  return out;
}

}  // namespace

bool CarriedCost::is_touched_by(int32_t first, int32_t end) const {
  const auto reader = std::lower_bound(element.readers.begin(), element.readers.end(), first);
  return (element.born >= first && element.born < end) ||
         (reader != element.readers.end() && *reader < end);
}

std::vector<program::Carried> CostTable::carried_elements() const {
  std::vector<program::Carried> elements;
  for (const CarriedCost& one : carried) {
    elements.push_back(one.element);
  }
  return elements;
}

int64_t CostTable::carried_bytes() const {
  int64_t sum = 0;
  for (const CarriedCost& one : carried) {
    sum += one.all_bytes();
  }
  return sum;
}

int64_t CostTable::given_bytes() const {
  int64_t sum = input_bytes();
  for (const CarriedCost& one : carried) {
    sum += one.element.born < 0 ? one.bytes : 0;
  }
  return sum;
}

int64_t CostTable::held_bytes() const {
  int64_t sum = 0;
  for (const program::Held& one : held) {
    sum += one.bytes;
  }
  return sum;
}

std::string format_costs(const CostTable& table) {
  ordered_json out{{"description", table.description}, {"layers", ordered_json::array()}};
  for (const LayerCost& layer : table.layers) {
    out["layers"].push_back(layer_json(layer));
  }
  if (!table.carried.empty()) {
    out["carried"] = ordered_json::array();
  }
  for (const CarriedCost& one : table.carried) {
    ordered_json element{{"name", one.element.name}};
    if (one.element.born >= 0) {
      element["born"] = one.element.born;
    }
    element["readers"] = one.element.readers;
    element["bytes"] = one.bytes;
    element["gradient_bytes"] = one.gradient_bytes;
    out["carried"].push_back(std::move(element));
  }
  out["loss"] = {{"name", table.loss.name},
                 {"seconds", table.loss.seconds},
                 {"extra_bytes", table.loss.extra_bytes},
                 {"parameter_bytes", table.loss.parameter_bytes},
                 {"gradient_bytes", table.loss.gradient_bytes},
                 {"optimizer_bytes", table.loss.optimizer_bytes}};
  out["target_bytes"] = table.target_bytes;
  out["residents"] = ordered_json::array();
  for (const program::Held& resident : table.held) {
    out["residents"].push_back({{"name", resident.name}, {"bytes", resident.bytes}});
  }
  out["clear_s"] = table.clear_s;
  out["step_s"] = table.step_s;
  out["step_extra_bytes"] = table.step_extra_bytes;
  if (table.link != LinkCost()) {
    out["link_latency_s"] = table.link.latency_s;
    out["link_bytes_per_s"] = table.link.bytes_per_s;
  }
  return out.dump(1) + "\n";
}

CostTable parse_costs(std::string_view text, const std::string& origin) {
  json root;
  try {
    root = parse_strict_json(text, /*max_depth=*/8);
  } catch (const ConfigError& error) {
    throw ConfigError(cat(origin, " ", error.what()));
  }
  return read_table(root, origin);
}

CostTable read_costs(const std::filesystem::path& file) {
  return parse_costs(read_text_file(file), file.string());
}

}  // namespace penstock::plan
