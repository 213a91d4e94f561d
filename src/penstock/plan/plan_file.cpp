#include "penstock/plan/plan_file.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <map>
#include <set>

// As in config/recipe.cpp: without assertions, for which it gives ordinary errors.
#undef NDEBUG
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/quote.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/config/options.h"
#include "penstock/config/plain_toml.h"
#include "penstock/plan/cuts.h"

namespace penstock::plan {

namespace {

constexpr int64_t kVersion = 1;
constexpr const char* kHint = "; plan again with penstock plan --out";

// What a plan rests on beside [plan].
bool is_rested_on(const config::Option& option) {
  static const std::set<std::string> keys = {"train.batch",
                                             "train.optimizer",
                                             "train.precision",
                                             "train.momentum",
                                             "train.local_step_clipper",
                                             "run.device"};
  const bool is_model = option.section() == "model" && option.key != "model.weights";
  return is_model || keys.contains(option.key);
}

bool is_in_file(const config::Option& option) {
  return option.section() == "plan" || is_rested_on(option);
}

std::string key_line(const config::Option& option, const config::Recipe& recipe) {
  return cat(option.name(), " = ", config::format_value(option.get(recipe)), "\n");
}

std::string range_text(size_t first, size_t last) {
  return first == last ? cat(first) : cat(first, "-", last);
}

std::string format_slots(const Plan& plan) {
  std::string text;
  for (size_t stage = 0; stage < plan.operations.size(); ++stage) {
    const std::vector<StageOperations>& all = plan.operations[stage];
    for (size_t first = 0; first < all.size();) {
      size_t last = first;
      while (last + 1 < all.size() && all[last + 1] == all[first]) {
        ++last;
      }
      text += cat("[[slots]]\nstage = ",
                  stage,
                  "\nmicro_batches = \"",
                  range_text(first, last),
                  "\"\nforward = \"",
                  format_operations(all[first].forward),
                  "\"\nbackward = \"",
                  format_operations(all[first].backward),
                  "\"\n\n");
      first = last + 1;
    }
  }
  return text;
}

// In ''' a text stands as it is.
std::string long_text(const std::string& text) {
  PENSTOCK_CHECK(text.find("'''") == std::string::npos, "three quotation marks in a row");
  return cat("'''\n", text, text.ends_with('\n') ? "" : "\n", "'''");
}

std::string format_machine(const Machine& machine) {
  std::string text = cat("block_bytes = ",
                         machine.block_bytes,
                         "\nspare_page_bytes = ",
                         machine.spare_page_bytes,
                         "\nranks_per_node = ",
                         machine.ranks_per_node,
                         "\nranks_are_threads = ",
                         machine.ranks_are_threads ? "true" : "false",
                         "\n");
  for (const auto& [name, link] : {std::pair{"within_node", machine.within_node},
                                   std::pair{"between_nodes", machine.between_nodes}}) {
    text += cat(name,
                " = { latency_s = ",
                format_number(link.latency_s),
                ", bytes_per_s = ",
                format_number(link.bytes_per_s),
                " }\n");
  }
  if (machine.collectives) {
    text += cat("collectives = ", long_text(format_links(*machine.collectives, {})), "\n");
  }
  return text;
}

std::string format_predicted(const PlanFile::Predicted& predicted) {
  std::vector<std::string> peaks;
  for (const int64_t bytes : predicted.peak_bytes) {
    peaks.push_back(cat(bytes));
  }
  return cat("updates = ",
             predicted.updates,
             "\nstep_s = ",
             format_number(predicted.step_s),
             "\npeak_bytes = [",
             join(peaks, ", "),
             "]\n");
}

std::string checksum_of(const std::string& text) {
  std::array<char, 16> digits;
  std::snprintf(digits.data(), digits.size(), "%08x", crc32c(text.data(), text.size()));
  return digits.data();
}

using Checksums = std::vector<std::pair<std::string, std::string>>;

// Of every key, and of the other fields: a change by hand is found, and its field named.
Checksums key_checksums(const config::Recipe& recipe) {
  Checksums all;
  for (const config::Option& option : config::option_table()) {
    if (is_in_file(option)) {
      all.emplace_back(option.key, checksum_of(key_line(option, recipe)));
    }
  }
  return all;
}

Checksums other_checksums(const PlanFile& file) {
  return {{"slots", checksum_of(format_slots(file.plan))},
          {"machine", checksum_of(format_machine(file.machine))},
          {"costs.table", checksum_of(format_costs(file.costs))},
          {"predicted", checksum_of(format_predicted(*file.predicted))}};
}

// --- reading

class Reader {
 public:
  Reader(const std::string& text, const std::string& origin) : text_(text), origin_(origin) {}

  PlanFile run() {
    parse();
    PlanFile file;
    file.recipe = config::parse_recipe(text_, origin_, {kSections.begin(), kSections.end()});
    require_keys();
    // First: what else is wrong may be the consequence of a change.
    require_unchanged(key_checksums(file.recipe));
    file.plan.options = file.recipe.plan;
    file.costs = parse_costs(text_of("costs", "table"), cat(origin_, ": costs.table"));
    read_machine(file.machine);
    require_valid(file.recipe);
    require_settled(file.plan.options);
    read_slots(file);
    read_predicted(file);
    return file;
  }

 private:
  static constexpr std::array<const char*, 5> kSections = {
      "penstock", "slots", "machine", "costs", "predicted"};

  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(cat(origin_, ": ", what));
  }

  void parse() {
    try {
      table_ = toml::parse(config::PlainToml(text_, origin_).rewrite(), origin_);
    } catch (const toml::parse_error& error) {
      std::string reason(error.description());
      std::replace_if(
          reason.begin(), reason.end(), [](char letter) { return letter < 0x20; }, ' ');
      refuse(cat("line ", error.source().begin.line, ": not valid TOML: ", reason));
    }
    const std::optional<int64_t> version = table_["penstock"]["plan"].value<int64_t>();
    if (!version) {
      refuse("penstock.plan is missing: this is no plan that penstock plan --out has written");
    }
    if (*version != kVersion) {
      refuse(cat("penstock.plan = ", *version, ", and this program reads ", kVersion, kHint));
    }
  }

  void require_keys() const {
    for (const config::Option& option : config::option_table()) {
      if (is_in_file(option) && !table_[option.section()][option.name()]) {
        refuse(cat(option.key, " is missing: a plan leaves nothing open", kHint));
      }
    }
  }

  void require_valid(config::Recipe recipe) const {
    // No keys of a plan: the recipe that is trained says them.
    recipe.train.clip = 0;
    recipe.model.vocabulary = std::max<int64_t>(recipe.model.vocabulary, 256);
    try {
      config::validate(recipe);
    } catch (const ConfigError& error) {
      refuse(error.what());
    }
  }

  void require_settled(const config::PlanOptions& options) const {
    const std::map<std::string, std::string> words = {{"plan.schedule", options.schedule},
                                                      {"plan.shard", options.shard},
                                                      {"plan.recompute", options.recompute}};
    for (const auto& [key, word] : words) {
      if (word == "auto") {
        refuse(cat(key, " = \"auto\": a plan leaves nothing open", kHint));
      }
    }
    try {
      config::require_replicas(options);
    } catch (const ConfigError& error) {
      refuse(error.what());
    }
  }

  std::string text_of(const char* section, const char* name) const {
    const std::optional<std::string> found = table_[section][name].value<std::string>();
    if (!found) {
      refuse(cat(section, ".", name, " is missing or no text"));
    }
    return *found;
  }

  double number_of(const toml::node_view<const toml::node>& node, const std::string& name) const {
    const std::optional<double> found = node.value<double>();
    if (!found || !(*found >= 0) || *found > std::numeric_limits<double>::max()) {
      refuse(cat(name, " is missing, or no number from 0 on"));
    }
    return *found;
  }

  int64_t integer_of(const char* section, const char* name, int64_t least, int64_t most) const {
    const auto* node = table_[section][name].as_integer();
    if (node == nullptr || node->get() < least || node->get() > most) {
      refuse(cat(section, ".", name, " is missing, or no integer from ", least, " to ", most));
    }
    return node->get();
  }

  void read_machine(Machine& machine) const {
    constexpr int64_t kMost = int64_t{1} << 40;
    machine.block_bytes = integer_of("machine", "block_bytes", 1, kMost);
    machine.spare_page_bytes = integer_of("machine", "spare_page_bytes", 0, kMost);
    machine.ranks_per_node =
        static_cast<int32_t>(integer_of("machine", "ranks_per_node", 1, 1 << 20));
    const auto* threads = table_["machine"]["ranks_are_threads"].as_boolean();
    if (threads == nullptr) {
      refuse("machine.ranks_are_threads is missing, or neither true nor false");
    }
    machine.ranks_are_threads = threads->get();
    for (const auto& [name, link] : {std::pair{"within_node", &machine.within_node},
                                     std::pair{"between_nodes", &machine.between_nodes}}) {
      const auto node = table_["machine"][name];
      link->latency_s = number_of(node["latency_s"], cat("machine.", name, ".latency_s"));
      link->bytes_per_s = number_of(node["bytes_per_s"], cat("machine.", name, ".bytes_per_s"));
    }
    if (table_["machine"]["collectives"]) {
      machine.collectives =
          parse_links(text_of("machine", "collectives"), cat(origin_, ": machine.collectives"));
    }
  }

  // "0-7", within the plan's micro-batches.
  std::pair<size_t, size_t> micro_batches_of(const std::string& text, size_t count) const {
    unsigned first = 0, last = 0;
    char rest = 0;
    const int found = std::sscanf(text.c_str(), "%u-%u%c", &first, &last, &rest);
    if (found == 1 && text == cat(first)) {
      last = first;
    } else if (found != 2 || text != cat(first, "-", last)) {
      refuse(cat("slots.micro_batches = ", in_quotes(text), " is no range, as in \"0-7\""));
    }
    if (last < first || last >= count) {
      refuse(cat("slots.micro_batches = \"",
                 text,
                 "\" are not among those of plan.micro_batches = ",
                 count));
    }
    return {first, last};
  }

  void read_slots(PlanFile& file) const {
    const auto* list = table_["slots"].as_array();
    if (list == nullptr || !list->is_array_of_tables()) {
      refuse("[[slots]] is missing");
    }
    Plan& plan = file.plan;
    const auto layers = static_cast<int32_t>(file.costs.layers.size());
    schedule::Schedule schedule;
    try {
      schedule = plan.schedule(1);
      check_cuts(plan.options.first_layers(), layers, schedule.stages());
    } catch (const ConfigError& error) {
      refuse(error.what());
    }
    const auto stages = static_cast<size_t>(schedule.stages());
    const auto count = static_cast<size_t>(plan.options.micro_batches);
    std::vector<std::vector<bool>> is_said(stages, std::vector<bool>(count, false));
    plan.operations.assign(stages, std::vector<StageOperations>(count));
    for (const toml::node& node : *list) {
      read_slot(*node.as_table(), file, is_said);
    }
    for (size_t stage = 0; stage < stages; ++stage) {
      const auto gap = std::find(is_said[stage].begin(), is_said[stage].end(), false);
      if (gap != is_said[stage].end()) {
        refuse(cat("[[slots]] leave out micro-batch ",
                   gap - is_said[stage].begin(),
                   " of stage ",
                   stage,
                   ": plan.pipeline and plan.schedule have ",
                   stages,
                   stages == 1 ? " stage" : " stages",
                   ", plan.micro_batches is ",
                   count));
      }
    }
  }

  void read_slot(const toml::table& slot,
                 PlanFile& file,
                 std::vector<std::vector<bool>>& is_said) const {
    const std::optional<int64_t> stage = slot["stage"].value<int64_t>();
    if (!stage || *stage < 0 || *stage >= static_cast<int64_t>(is_said.size())) {
      refuse(cat("slots.stage is missing, or not among the ",
                 is_said.size(),
                 " stages of plan.pipeline and plan.schedule"));
    }
    const auto text = [&](const char* name) {
      const std::optional<std::string> found = slot[name].value<std::string>();
      if (!found) {
        refuse(cat("slots.", name, " of stage ", *stage, " is missing or no text"));
      }
      return *found;
    };
    const auto number = static_cast<size_t>(*stage);
    StageOperations operations{
        parse_operations(text("forward"), cat(origin_, ": slots.forward of stage ", *stage)),
        parse_operations(text("backward"), cat(origin_, ": slots.backward of stage ", *stage))};
    const std::vector<int32_t> cuts =
        file.plan.cuts(static_cast<int32_t>(file.costs.layers.size()));
    for (Operation& operation : operations.backward) {
      if (operation.kind == OperationKind::Loss) {
        operation.layer = cuts.back();
      }
    }
    check_slot(file.costs, cuts, number, operations);
    const auto [first, last] = micro_batches_of(text("micro_batches"), is_said[number].size());
    for (size_t at = first; at <= last; ++at) {
      if (is_said[number][at]) {
        refuse(cat("slots.micro_batches: ", at, " of stage ", *stage, " is there twice"));
      }
      is_said[number][at] = true;
      file.plan.operations[number][at] = operations;
    }
  }

  // Whether the operations can be run one after the other, and each layer goes back once.
  void check_slot(const CostTable& costs,
                  const std::vector<int32_t>& cuts,
                  size_t stage,
                  const StageOperations& operations) const {
    const int32_t begin = cuts[stage], end = cuts[stage + 1];
    const bool is_last = stage + 2 == cuts.size();
    const auto wrong = [&](bool is_forward, const std::string& what) {
      refuse(cat("slots.", is_forward ? "forward" : "backward", " of stage ", stage, " ", what));
    };
    std::set<int32_t> made = {begin};  // activations, by the layer that they enter
    std::set<int32_t> kept;
    int32_t next_back = end - 1;
    bool has_loss = false;
    for (const bool is_forward : {true, false}) {
      for (const Operation& one : is_forward ? operations.forward : operations.backward) {
        if (one.kind == OperationKind::Loss) {
          if (is_forward || !is_last || has_loss || !made.contains(end)) {
            wrong(is_forward, "has a loss where none belongs");
          }
          has_loss = true;
          continue;
        }
        if (one.layer < begin || one.layer >= end) {
          wrong(is_forward, cat("works at layer ", one.layer, ", which is not in plan.cuts there"));
        }
        if (one.kind == OperationKind::Backward) {
          if (is_forward || one.layer != next_back || !kept.contains(one.layer) ||
              (is_last && !has_loss)) {
            wrong(is_forward, cat("goes back over layer ", one.layer, " too early or twice"));
          }
          --next_back;
          continue;
        }
        if (!made.contains(one.layer)) {
          wrong(is_forward, cat("runs layer ", one.layer, " before there is an input for it"));
        }
        made.insert(one.layer + 1);
        if (one.kind == OperationKind::ForwardAll) {
          const auto modes =
              static_cast<int32_t>(costs.layers[static_cast<size_t>(one.layer)].modes.size());
          if (one.mode >= modes) {
            wrong(is_forward,
                  cat("keeps layer ", one.layer, " in save mode ", one.mode, " of ", modes));
          }
          kept.insert(one.layer);
        }
      }
      if (is_forward && !made.contains(end)) {
        wrong(true, cat("does not come to layer ", end));
      }
    }
    if (next_back != begin - 1 || has_loss != is_last) {
      wrong(false, "does not go back over all layers of the stage once");
    }
  }

  void read_predicted(PlanFile& file) const {
    if (!table_["predicted"]) {
      return;
    }
    PlanFile::Predicted predicted;
    predicted.updates =
        static_cast<int32_t>(integer_of("predicted", "updates", 1, int64_t{1} << 30));
    predicted.step_s = number_of(table_["predicted"]["step_s"], "predicted.step_s");
    const auto* peaks = table_["predicted"]["peak_bytes"].as_array();
    for (size_t i = 0; peaks != nullptr && i < peaks->size(); ++i) {
      predicted.peak_bytes.push_back(peaks->get(i)->value<int64_t>().value_or(-1));
    }
    if (static_cast<int64_t>(predicted.peak_bytes.size()) != file.plan.options.ranks() ||
        std::any_of(predicted.peak_bytes.begin(), predicted.peak_bytes.end(), [](int64_t bytes) {
          return bytes < 0;
        })) {
      refuse(cat("predicted.peak_bytes is no list of bytes, one for each of the ",
                 file.plan.options.ranks(),
                 " ranks of plan.pipeline and plan.data"));
    }
    file.predicted = predicted;
    require_unchanged(other_checksums(file));
  }

  // Where there is [predicted].
  void require_unchanged(const Checksums& checksums) const {
    if (!table_["predicted"]) {
      return;
    }
    for (const auto& [name, checksum] : checksums) {
      const std::optional<std::string> found =
          table_["predicted"]["checksums"][name].value<std::string>();
      if (!found) {
        refuse(cat("predicted.checksums has none of ", name));
      }
      if (*found != checksum) {
        refuse(cat(name,
                   " was changed after the plan was made",
                   kHint,
                   ", or delete [predicted] with its checksums to run the plan as it stands"));
      }
    }
  }

  const std::string& text_;
  const std::string& origin_;
  toml::table table_;
};

}  // namespace

std::string format_plan(const PlanFile& file) {
  config::Recipe recipe = file.recipe;
  recipe.plan = file.plan.options;
  std::string text = cat(
      "# A plan of penstock: penstock train RECIPE --plan FILE runs it. To change a field by hand, "
      "delete\n# [predicted] and its checksums: the plan is then checked again, and runs as it "
      "stands.\n\n[penstock]\nplan = ",
      kVersion,
      "\n");
  std::string section;
  for (const config::Option& option : config::option_table()) {
    if (!is_in_file(option)) {
      continue;
    }
    if (option.section() != section) {
      section = option.section();
      text += cat("\n[", section, "]\n");
    }
    text += key_line(option, recipe);
  }
  text += cat("\n", format_slots(file.plan), "[machine]\n", format_machine(file.machine));
  text += cat("\n[costs]\ntable = ", long_text(format_costs(file.costs)), "\n");
  if (file.predicted) {
    text += cat("\n[predicted]\n", format_predicted(*file.predicted), "\n[predicted.checksums]\n");
    Checksums checksums = key_checksums(recipe);
    const Checksums others = other_checksums(file);
    checksums.insert(checksums.end(), others.begin(), others.end());
    for (const auto& [name, checksum] : checksums) {
      text += cat("\"", name, "\" = \"", checksum, "\"\n");
    }
  }
  return text;
}

PlanFile parse_plan(const std::string& toml, const std::string& origin) {
  return Reader(toml, origin).run();
}

void write_plan(const std::filesystem::path& path, const PlanFile& file) {
  write_text_file(path, format_plan(file));
}

PlanFile read_plan(const std::filesystem::path& path) {
  return parse_plan(read_text_file(path), path.string());
}

void require_plan_of(const PlanFile& file,
                     const config::Recipe& recipe,
                     const std::string& origin) {
  config::Recipe planned = file.recipe;
  planned.plan = file.plan.options;
  const config::Recipe defaults;
  for (const config::Option& option : config::option_table()) {
    const bool is_plan = option.section() == "plan";
    // A key of [plan] that the recipe does not give is the plan's to say.
    const bool is_open = is_plan && option.get(recipe) == option.get(defaults);
    const bool is_same = option.key == "plan.memory"
                             ? recipe.plan.memory_bytes() == planned.plan.memory_bytes()
                             : option.get(recipe) == option.get(planned);
    // What the plan's layout has no use for, it has settled by itself.
    const bool is_settled = (planned.plan.pipeline == 1 &&
                             (option.key == "plan.schedule" || option.key == "plan.cuts")) ||
                            (planned.plan.data == 1 && option.key == "plan.shard");
    if (option.key == "plan.costs" || !is_in_file(option) || is_open || is_same || is_settled) {
      continue;
    }
    throw ConfigError(cat(origin,
                          " was made for ",
                          option.key,
                          " = ",
                          config::format_value(option.get(planned)),
                          ", and the recipe has ",
                          config::format_value(option.get(recipe)),
                          kHint));
  }
  if (recipe.plan.costs.empty()) {
    return;
  }
  CostTable costs = read_costs(recipe.plan.costs);
  // Of one rank these were found on the device, whatever the table says.
  if (planned.plan.ranks() == 1) {
    costs.held = file.costs.held;
    costs.target_bytes = file.costs.target_bytes;
  }
  if (format_costs(costs) != format_costs(file.costs)) {
    throw ConfigError(
        cat(origin, " was made with other costs than plan.costs = ", recipe.plan.costs, kHint));
  }
}

}  // namespace penstock::plan
