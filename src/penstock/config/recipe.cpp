#include "penstock/config/recipe.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

// toml++ 3.3 asserts what a recipe can violate ("[~" for a section), and lets clang assume it with
// NDEBUG (its pull request 301). Without assertions it gives an ordinary error.
#undef NDEBUG
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/units.h"
#include "penstock/config/options.h"
#include "penstock/config/plain_toml.h"

namespace penstock::config {

namespace {

std::string position(const std::string& origin, const toml::source_region& region) {
  return cat(origin, ":", region.begin.line);
}

bool is_control_character(char letter) {
  return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F;
}

OptionValue read_value(const toml::node& node, const Option& option, const std::string& where) {
  if (const auto* flag = node.as_boolean()) {
    return flag->get();
  }
  if (const auto* whole = node.as_integer()) {
    return whole->get();
  }
  if (const auto* real = node.as_floating_point()) {
    return real->get();
  }
  if (const auto* text = node.as_string()) {
    return text->get();
  }
  throw ConfigError(
      cat(where, ": ", option.key, " is a list, a table or a date; it takes ", option.wanted()));
}

void require_known_section(const std::string& section, const std::string& where) {
  const std::vector<std::string> sections = section_names();
  if (std::find(sections.begin(), sections.end(), section) != sections.end()) {
    return;
  }
  const std::string suggestion = nearest(section, sections);
  throw ConfigError(cat(where,
                        ": unknown section [",
                        format_key(section),
                        "]",
                        suggestion.empty() ? "" : cat("; did you mean [", suggestion, "]?"),
                        " (known: ",
                        join(sections, ", "),
                        ")"));
}

void validate_precision(const TrainOptions& train, const RunOptions& run) {
  const bool needs_cuda = train.precision == "tf32" || train.precision == "float16";
  if (needs_cuda && run.device != "cuda") {
    throw ConfigError(cat("train.precision = \"",
                          train.precision,
                          "\" goes with run.device = \"cuda\"; \"",
                          run.device,
                          "\" takes \"float32\" or \"bfloat16\"; try train.precision = \"",
                          train.precision == "tf32" ? "float32" : "bfloat16",
                          "\""));
  }
  if (train.loss_scale_least > train.loss_scale) {
    throw ConfigError(cat("train.loss_scale_least = ",
                          format_number(train.loss_scale_least),
                          " is above train.loss_scale = ",
                          format_number(train.loss_scale),
                          "; try train.loss_scale_least = ",
                          format_number(std::min(train.loss_scale, 1.0))));
  }
}

void validate_pipeline(const PlanOptions& plan, const RunOptions& run) {
  plan.first_layers();
  if (plan.pipeline == 1 && !plan.cuts.empty()) {
    throw ConfigError(
        cat("plan.cuts = \"",
            plan.cuts,
            "\" cuts a pipeline, and plan.pipeline is 1; set it to the number of ranks"));
  }
  if (plan.ranks() == 1 && plan.recompute == "rotor-uniform") {
    throw ConfigError(
        "plan.recompute = \"rotor-uniform\" is for pipelines, and plan.pipeline is 1; try "
        "\"rotor\"");
  }
  if (plan.pipeline > 1 && (plan.recompute == "all" || plan.recompute == "sqrt")) {
    throw ConfigError(cat("plan.recompute = \"",
                          plan.recompute,
                          "\" is for one rank, and plan.pipeline is ",
                          plan.pipeline,
                          "; a pipeline takes \"none\", \"rotor\" or \"rotor-uniform\""));
  }
  if (plan.pipeline > 1 && run.graphs == "on") {
    throw ConfigError(cat("run.graphs = \"on\" records the step of one rank, and plan.pipeline is ",
                          plan.pipeline,
                          ": a recorded step cannot wait for a peer; try run.graphs = \"auto\""));
  }
}

void validate_data(const Recipe& recipe) {
  const PlanOptions& plan = recipe.plan;
  if (plan.bucket_bytes() <= 0) {
    throw ConfigError(
        cat("plan.bucket = \"", plan.bucket, "\" is no number of bytes; try \"25MiB\""));
  }
  if (plan.keep_gathered && plan.shard != "parameters") {
    throw ConfigError(cat("plan.keep_gathered = true goes with plan.shard = \"parameters\", not \"",
                          plan.shard,
                          "\""));
  }
  if (plan.data == 1) {
    return;
  }
  if (recipe.run.device == "cuda") {
    throw ConfigError(cat("plan.data = ",
                          plan.data,
                          " is for run.device = \"cpu\" so far; on GPUs the model can be cut with "
                          "plan.pipeline"));
  }
  if (plan.is_asynchronous()) {
    throw ConfigError(cat("plan.schedule = \"",
                          plan.schedule,
                          "\" moves weights while micro-batches are in flight, and plan.data = ",
                          plan.data,
                          " reduces their gradients once a step; try \"1f1b\""));
  }
  if (plan.recompute == "all" || plan.recompute == "sqrt") {
    throw ConfigError(cat("plan.recompute = \"",
                          plan.recompute,
                          "\" is for one rank, and plan.data is ",
                          plan.data,
                          "; replicas take \"none\", \"rotor\" or \"rotor-uniform\""));
  }
}

void validate_one_bit(const Recipe& recipe) {
  const TrainOptions& train = recipe.train;
  const PlanOptions& plan = recipe.plan;
  const RunOptions& run = recipe.run;
  if (!train.is_one_bit()) {
    return;
  }
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(cat("train.optimizer = \"", train.optimizer, "\" ", why));
  };
  if (run.device == "cuda") {
    refuse(cat("is for run.device = \"cpu\"; on a GPU try train.optimizer = \"",
               train.optimizer == "onebit-lamb" ? "lamb" : "adamw",
               "\""));
  }
  if (plan.shard == "gradients" || plan.shard == "parameters") {
    refuse(
        cat("compresses to 1 bit what every replica makes of its whole gradient, and "
            "plan.shard = \"",
            plan.shard,
            "\" leaves it only a shard; try plan.shard = \"optimizer\""));
  }
  if (train.optimizer == "zeroone-adam" && plan.shard == "optimizer" &&
      train.local_step_clipper > 1) {
    refuse(cat("with train.local_step_clipper = ",
               train.local_step_clipper,
               " lets every replica move all weights by itself, and with plan.shard = "
               "\"optimizer\" it moves a shard; set train.local_step_clipper = 1, or plan.shard = "
               "\"none\""));
  }
}

// What weights that move on each rank by themselves cannot have.
void validate_asynchronous(const Recipe& recipe) {
  const PlanOptions& plan = recipe.plan;
  if (!plan.is_asynchronous()) {
    return;
  }
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(cat("plan.schedule = \"", plan.schedule, "\" ", why));
  };
  if (plan.pipeline == 1) {
    refuse("is for pipelines, and plan.pipeline is 1; set it to the number of ranks");
  }
  if (recipe.train.clip > 0) {
    refuse(cat("moves each rank's weights by itself, and train.clip = ",
               format_number(recipe.train.clip),
               " needs the gradients of all ranks at once; set train.clip = 0, or try \"1f1b\""));
  }
  if (recipe.model.tied) {
    refuse(
        "moves each rank's weights by itself, and with model.tied the first and the last rank "
        "share "
        "some; set model.tied = false, or try \"1f1b\"");
  }
  if (recipe.train.precision == "float16") {
    refuse(
        "moves each rank's weights by itself, and train.precision = \"float16\" skips a step on "
        "all "
        "ranks at once; try \"bfloat16\"");
  }
  if (plan.schedule == "2bw" && plan.micro_batches < plan.pipeline) {
    refuse(cat("has two versions of the weights, which takes a micro-batch for each of ",
               plan.pipeline,
               " ranks; set plan.micro_batches to ",
               plan.pipeline,
               " or more, or try \"pipedream\""));
  }
}

}  // namespace

Recipe parse_recipe(const std::string& toml,
                    const std::string& origin,
                    const std::vector<std::string>& other_sections) {
  toml::table table;
  try {
    table = toml::parse(PlainToml(toml, origin).rewrite(), origin);
  } catch (const toml::parse_error& error) {
    std::string reason(error.description());  // may quote a line break
    std::replace_if(reason.begin(), reason.end(), is_control_character, ' ');
    throw ConfigError(cat(position(origin, error.source()), ": not valid TOML: ", reason));
  }
  Recipe recipe;
  for (const auto& [section, content] : table) {
    const std::string section_name(section.str());
    if (std::find(other_sections.begin(), other_sections.end(), section_name) !=
        other_sections.end()) {
      continue;
    }
    const std::string where = position(origin, content.source());
    if (content.is_array_of_tables()) {
      throw ConfigError(
          cat(where, ": [[", section_name, "]] is a list of sections; write [", section_name, "]"));
    }
    if (!content.is_table()) {
      throw ConfigError(cat(where,
                            ": ",
                            format_key(section_name),
                            " stands outside of any section; keys belong under [",
                            join(section_names(), "], ["),
                            "]"));
    }
    require_known_section(section_name, where);
    for (const auto& [name, value] : *content.as_table()) {
      const std::string key = cat(section_name, ".", name.str());
      const std::string value_position = position(origin, value.source());
      const Option& option = find_option(key, value_position);
      set_option(recipe, option, read_value(value, option, value_position), value_position);
    }
  }
  return recipe;
}

bool TrainOptions::is_one_bit() const {
  return optimizer == "onebit-adam" || optimizer == "zeroone-adam" || optimizer == "onebit-lamb";
}

bool PlanOptions::is_asynchronous() const {
  return schedule == "pipedream" || schedule == "2bw" || schedule == "pipemare";
}

int64_t PlanOptions::memory_bytes() const {
  return memory.empty() ? 0 : parse_bytes(memory).value_or(0);
}

int64_t RunOptions::process_memory_bytes() const {
  return process_memory.empty() ? 0 : parse_bytes(process_memory).value_or(0);
}

int64_t PlanOptions::bucket_bytes() const {
  return parse_bytes(bucket).value_or(0);
}

std::vector<int32_t> PlanOptions::first_layers() const {
  std::vector<int32_t> layers;
  std::string_view rest = cuts;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, comma);
    int32_t layer = 0;
    const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), layer);
    const bool is_number = fault == std::errc() && end == word.data() + word.size();
    if (!is_number || comma + 1 == rest.size()) {
      throw ConfigError(
          cat("plan.cuts = \"",
              cuts,
              "\" is no list of layers; write the first layer of each stage after the "
              "first, as in \"6,12,18\""));
    }
    layers.push_back(layer);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return layers;
}

void require_replicas(const PlanOptions& plan) {
  if (plan.data == 1 && plan.shard != "none" && plan.shard != "auto") {
    throw ConfigError(cat("plan.shard = \"",
                          plan.shard,
                          "\" divides a model among replicas, and plan.data is 1; set it to their "
                          "number"));
  }
}

namespace {

// "60" is a slip: nobody means 60 bytes.
void require_unit(const char* key, const std::string& text) {
  constexpr int64_t kLeast = 1000;
  const bool is_bare = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  if (is_bare && parse_bytes(text).value_or(kLeast) < kLeast) {
    throw ConfigError(cat(key,
                          " = \"",
                          text,
                          "\" is ",
                          text,
                          " bytes; write a unit, as in \"",
                          text,
                          "MiB\" or \"",
                          text,
                          "GB\""));
  }
}

}  // namespace

Recipe load_recipe(const std::string& path, const std::vector<std::string>& settings) {
  std::error_code ignored;
  if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) {
    throw ConfigError(cat("recipe ", path, " does not exist; recipes/ has examples"));
  }
  Recipe recipe = parse_recipe(read_text_file(path), path);
  for (const std::string& setting : settings) {
    apply_setting(recipe, setting);
  }
  if (recipe.run.out.empty()) {
    recipe.run.out = cat("runs/", std::filesystem::path(path).stem().string());
  }
  require_unit("plan.memory", recipe.plan.memory);
  require_unit("run.process_memory", recipe.run.process_memory);
  validate(recipe);
  return recipe;
}

void validate(const Recipe& recipe) {
  const auto& [model, data, train, plan, run] = recipe;
  if (model.width % model.heads != 0) {
    throw ConfigError(cat("model.width = ",
                          model.width,
                          " is not divisible by model.heads = ",
                          model.heads,
                          "; try model.width = ",
                          (model.width / model.heads + 1) * model.heads));
  }
  if (train.batch % plan.data != 0) {
    throw ConfigError(cat("train.batch = ",
                          train.batch,
                          " is not divisible by plan.data = ",
                          plan.data,
                          "; try train.batch = ",
                          (train.batch / plan.data + 1) * plan.data));
  }
  const int64_t share = train.batch / plan.data;
  if (share % plan.micro_batches != 0) {
    int64_t divisor = std::min(plan.micro_batches, share);
    while (share % divisor != 0) {
      --divisor;
    }
    throw ConfigError(
        cat("train.batch = ",
            train.batch,
            plan.data > 1 ? cat(", ", share, " for each of plan.data = ", plan.data, ",") : "",
            " is not divisible by plan.micro_batches = ",
            plan.micro_batches,
            "; try plan.micro_batches = ",
            divisor));
  }
  if (data.tokenizer == "bytes" && model.vocabulary < 256) {
    throw ConfigError(cat("model.vocabulary = ",
                          model.vocabulary,
                          " is too small for data.tokenizer = \"bytes\"; it needs 256"));
  }
  if (train.nesterov && train.optimizer != "sgd") {
    throw ConfigError(cat("train.nesterov = true goes with train.optimizer = \"sgd\", not \"",
                          train.optimizer,
                          "\""));
  }
  if (train.nesterov && train.momentum == 0) {
    throw ConfigError(
        "train.nesterov = true needs train.momentum above 0; try train.momentum = 0.9");
  }
  validate_precision(train, run);
  validate_pipeline(plan, run);
  validate_data(recipe);
  validate_one_bit(recipe);
  validate_asynchronous(recipe);
  if (run.graphs == "on" && run.device != "cuda") {
    throw ConfigError(cat("run.graphs = \"on\" goes with run.device = \"cuda\", not \"",
                          run.device,
                          "\"; try run.graphs = \"auto\""));
  }
  if (!run.process_memory.empty() && run.device == "cuda") {
    throw ConfigError(
        "run.process_memory is for run.device = \"cpu\": on a GPU plan.memory is the GPU's; leave "
        "it "
        "out");
  }
  if (run.links == "nccl" && run.device != "cuda") {
    throw ConfigError(cat("run.links = \"nccl\" goes with run.device = \"cuda\", not \"",
                          run.device,
                          "\"; try run.links = \"auto\""));
  }
  constexpr int64_t kMostOnGpu = 16384;
  if (run.device == "cuda" && plan.micro_batches > kMostOnGpu) {
    throw ConfigError(cat("plan.micro_batches = ",
                          plan.micro_batches,
                          " is too many for run.device = \"cuda\", which takes up to ",
                          kMostOnGpu));
  }
  if (run.graphs == "on" && !plan.memory.empty()) {
    throw ConfigError(
        "run.graphs = \"on\" cannot keep plan.memory: a recorded step has its memory to itself; "
        "try "
        "run.graphs = \"auto\"");
  }
  if (run.graphs == "on" && model.dropout > 0) {
    throw ConfigError(cat("run.graphs = \"on\" needs model.dropout = 0, not ",
                          model.dropout,
                          ": with dropout every step is another; try run.graphs = \"auto\""));
  }
}

}  // namespace penstock::config
