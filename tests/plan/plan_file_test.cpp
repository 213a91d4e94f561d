#include "penstock/plan/plan_file.h"

#include <array>
#include <map>
#include <variant>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/text.h"
#include "penstock/config/options.h"
#include "penstock/plan/planner.h"

#include "plan/random_chains.h"
#include "support/temp_folder.h"

namespace penstock::plan {
namespace {

using test::Dice;

// A parameter of each layer, some in float32 always, and one that the first layer and the loss
// share.
ModelSizes sizes_of(const CostTable& table, Dice& dice) {
  ModelSizes model{.compute_bytes = dice.chance(50) ? 4 : 2, .keeps_shares = dice.chance(50)};
  for (size_t layer = 0; layer <= table.layers.size(); ++layer) {
    const int64_t count = dice.between(1, 20000);
    LayerSizes& sizes = model.layers.emplace_back(LayerSizes{.name = cat("layer ", layer)});
    sizes.parameters.push_back({.name = cat("weight ", layer),
                                .count = count,
                                .flat = (count + 15) / 16 * 16,
                                .is_always_float32 = dice.chance(20)});
    sizes.backward_needs_weights = layer == table.layers.size() || dice.chance(80);
    if (layer == 0 || layer == table.layers.size()) {
      sizes.parameters.push_back({.name = "table", .count = 4000, .flat = 4000});
    }
  }
  model.optimizer = [](const Inventory&) {
    return OptimizerSize{{{"exp_avg", StateSize::Layout::Slices}}};
  };
  return model;
}

Machine random_machine(Dice& dice) {
  Machine machine{.block_bytes = dice.chance(50) ? 1 : 512,
                  .spare_page_bytes = dice.between(0, 1000),
                  .ranks_per_node = static_cast<int32_t>(dice.between(1, 4)),
                  .within_node = {1e-6 * static_cast<double>(dice.between(0, 9)), 1e9},
                  .between_nodes = {1e-4 / 3, 1e8 / 7},
                  .ranks_are_threads = dice.chance(50)};
  if (dice.chance(30)) {
    machine.collectives = LinkCosts{.ranks = 4,
                                    .algorithms = {{comm::Algorithm::Ring, {1e-5, 1e9}},
                                                   {comm::Algorithm::Direct, {2e-5, 3e9}}}};
  }
  return machine;
}

struct Case {
  CostTable costs;
  Machine machine;
  Request request;
  Outcome outcome;

  PlanFile file() const {
    PlanFile made{.plan = outcome.plan, .costs = costs, .machine = machine};
    made.recipe.train.batch = request.options.data * request.options.micro_batches;
    made.recipe.plan = outcome.plan.options;
    // What validate() asks of asynchronous schedules; no part of the file.
    made.recipe.train.clip = 0;
    made.recipe.model.tied = false;
    made.predicted = PlanFile::Predicted{.updates = outcome.program.updates,
                                         .step_s = outcome.step_s,
                                         .peak_bytes = outcome.peak_bytes};
    return made;
  }
};

Case random_case(Dice& dice) {
  constexpr const char* kSchedules[] = {
      "auto", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "pipedream", "pipemare"};
  constexpr const char* kShards[] = {"none", "optimizer", "gradients", "parameters"};
  Case made{.costs = test::rich_chain(dice, dice.between(6, 9), {})};
  made.machine = random_machine(dice);
  Request& request = made.request;
  request.model = sizes_of(made.costs, dice);
  config::PlanOptions& options = request.options;
  options.micro_batches = dice.between(1, 4);
  options.pipeline = dice.between(1, 3);
  if (options.pipeline > 1) {
    options.schedule = kSchedules[dice.between(0, 8)];
    options.chunks = 2;
  }
  options.data = options.is_asynchronous() ? 1 : dice.between(1, 3);
  options.shard = options.data > 1 ? kShards[dice.between(0, 3)] : "none";
  options.keep_gathered = options.shard == "parameters" && dice.chance(50);
  options.bucket = "40000";
  request.updates = options.is_asynchronous() ? static_cast<int32_t>(dice.between(1, 3)) : 1;
  made.outcome = make_plan(request, made.costs, made.machine);
  if (dice.chance(50)) {  // under a limit, so that slots differ
    options.memory = cat(made.outcome.most_peak_bytes() * dice.between(80, 99) / 100);
    const Outcome limited = make_plan(request, made.costs, made.machine);
    if (limited.is_feasible) {
      made.outcome = limited;
    } else {
      options.memory.clear();
    }
  }
  return made;
}

std::string error_of(const std::string& text) {
  try {
    parse_plan(text, "p.toml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), with);
}

std::string without_predicted(const std::string& text) {
  return text.substr(0, text.find("\n[predicted]\n") + 1);
}

// Two ranks, two replicas, four micro-batches, a limit.
PlanFile example() {
  Dice dice(7);
  Case made{.costs = test::rich_chain(dice, 8, {})};
  made.request.model = sizes_of(made.costs, dice);
  made.request.options = {.micro_batches = 4,
                          .recompute = "rotor",
                          .pipeline = 2,
                          .data = 2,
                          .shard = "gradients",
                          .bucket = "40000",
                          .schedule = "1f1b"};
  made.machine.ranks_are_threads = false;
  made.outcome = make_plan(made.request, made.costs, made.machine);
  PlanFile file = made.file();
  file.recipe.train.clip = 1;
  file.recipe.model.tied = true;
  file.recipe.train.batch = 8;
  return file;
}

}  // namespace

// What an allocator may leave unused of its pages is no tensor's: a limit that is larger by as much
// gives the same plan, with the same peaks and the same limit of tensors.
TEST(Planner, PagesComeOffTheLimit) {
  Dice dice(31);
  int limited = 0;
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    Case one = random_case(dice);
    one.machine.spare_page_bytes = 0;
    config::PlanOptions& options = one.request.options;
    options.memory.clear();
    const Outcome free = make_plan(one.request, one.costs, one.machine);
    const int64_t limit = dice.between(free.most_least_bytes() * 9 / 10, free.most_peak_bytes());
    options.memory = dice.chance(80) ? cat(limit) : "";
    const Outcome plain = make_plan(one.request, one.costs, one.machine);
    const int64_t spare = dice.between(1, 100000);
    one.machine.spare_page_bytes = spare;
    if (!options.memory.empty()) {
      options.memory = cat(limit + spare);
      ++limited;
    }
    const Outcome found = make_plan(one.request, one.costs, one.machine);
    EXPECT_EQ(found.is_feasible, plain.is_feasible);
    EXPECT_EQ(found.plan.operations, plain.plan.operations);
    EXPECT_EQ(found.program, plain.program);
    EXPECT_EQ(found.peak_bytes, plain.peak_bytes);
    const Outcome taken = take_plan(found.plan, one.request, one.costs, one.machine);
    EXPECT_EQ(taken.is_feasible, found.is_feasible);
    EXPECT_EQ(taken.peak_bytes, found.peak_bytes);
    for (size_t rank = 0; rank < found.least_bytes.size(); ++rank) {
      EXPECT_EQ(found.least_bytes[rank], plain.least_bytes[rank] + spare);
    }
  }
  EXPECT_GT(limited, 10);
}

TEST(PlanFile, ReadBackIsTheSamePlanAndGivesTheSameProgram) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    const Case one = random_case(dice);
    const PlanFile file = one.file();
    const std::string text = format_plan(file);
    const PlanFile read = parse_plan(text, "p.toml");
    ASSERT_EQ(read.plan, one.outcome.plan);
    ASSERT_EQ(read.machine, one.machine);
    ASSERT_EQ(format_costs(read.costs), format_costs(one.costs));
    ASSERT_EQ(format_plan(read), text);
    // From the file alone, and the model.
    const Outcome again = take_plan(read.plan, one.request, read.costs, read.machine);
    ASSERT_EQ(again.program, one.outcome.program);
    ASSERT_EQ(again.peak_bytes, one.outcome.peak_bytes);
    ASSERT_EQ(again.recomputed_forwards, one.outcome.recomputed_forwards);
    ASSERT_TRUE(again.is_feasible);
  }
}

TEST(PlanFile, EveryFieldThatIsChangedByHandIsNamed) {
  const PlanFile file = example();
  const std::string text = format_plan(file);
  ASSERT_EQ(error_of(text), "");
  config::Recipe recipe = file.recipe;
  recipe.plan = file.plan.options;
  // Other values, each allowed by itself.
  const std::map<std::string, std::string> others = {{"model.family", ""},  // there is one
                                                     {"train.optimizer", "\"sgd\""},
                                                     {"train.precision", "\"bfloat16\""},
                                                     {"plan.recompute", "\"rotor-uniform\""},
                                                     {"plan.memory", "\"1GiB\""},
                                                     {"plan.costs", "\"costs.json\""},
                                                     {"plan.shard", "\"optimizer\""},
                                                     {"plan.bucket", "\"50000\""},
                                                     {"plan.collectives", "\"ring\""},
                                                     {"plan.links", "\"links.json\""},
                                                     {"plan.reduce", "\"compute\""},
                                                     {"plan.schedule", "\"gpipe\""},
                                                     {"plan.cuts", "\"1\""},
                                                     {"run.device", "\"cuda\""},
                                                     {"model.heads", "6"},
                                                     {"plan.data", "4"}};
  int edits = 0;
  for (const config::Option& option : config::option_table()) {
    const std::string line = cat(option.name(), " = ", config::format_value(option.get(recipe)));
    const size_t section = text.find(cat("\n[", option.section(), "]\n"));
    const size_t at = text.find(cat("\n", line, "\n"), section);
    if (section == std::string::npos || at == std::string::npos) {
      continue;
    }
    std::string other;
    if (const auto known = others.find(option.key); known != others.end()) {
      other = known->second;
    } else if (const config::OptionValue value = option.get(recipe);
               std::holds_alternative<bool>(value)) {
      other = std::get<bool>(value) ? "false" : "true";
    } else if (std::holds_alternative<int64_t>(value)) {
      other = cat(2 * std::get<int64_t>(value) + 12 * (option.key == "model.width" ? 64 : 0) +
                  (std::get<int64_t>(value) == 0));
    } else {
      other = "0.25";
    }
    if (other.empty()) {
      continue;
    }
    std::string edited = text;
    edited.replace(at + 1, line.size(), cat(option.name(), " = ", other));
    EXPECT_NE(error_of(edited).find(option.key), std::string::npos)
        << option.key << " = " << other << ": " << error_of(edited);
    ++edits;
  }
  EXPECT_GE(edits, 28);
  const std::vector<std::array<std::string, 3>> more = {
      {"plan = 1\n", "plan = 2\n", "penstock.plan"},
      {"latency_s = 0,", "latency_s = 1,", "machine"},
      {"block_bytes = 1\n", "block_bytes = 2\n", "machine"},
      {"ranks_are_threads = false", "ranks_are_threads = true", "machine"},
      {"\"forward_s\": ", "\"forward_s\": 1", "costs.table"},
      {"step_s = ", "step_s = 1", "predicted"},
      {"peak_bytes = [", "peak_bytes = [1", "predicted"},
      {"updates = 1\n", "updates = 2\n", "predicted"}};
  for (const auto& [what, with, name] : more) {
    const std::string error = error_of(replaced(text, what, with));
    EXPECT_NE(error.find(name), std::string::npos) << what << ": " << error;
    ++edits;
  }
  EXPECT_GE(edits, 36);
}

TEST(PlanFile, APlanThatCannotBeIsRefusedByItsField) {
  const std::string text = without_predicted(format_plan(example()));
  ASSERT_EQ(error_of(text), "");
  const size_t cut = text.find("\ncuts = \"");
  const std::string first = text.substr(cut + 9, text.find('"', cut + 9) - cut - 9);
  const std::vector<std::array<std::string, 3>> edits = {
      {"[penstock]", "[penstuck]", "penstock.plan"},
      {"plan = 1", "plan = 0", "penstock.plan"},
      {"micro_batches = 4", "micro_batches = 2", "plan.micro_batches"},
      {"micro_batches = 4", "micro_batches = 0", "plan.micro_batches"},
      {"pipeline = 2", "pipeline = 4", "plan.cuts"},
      {"data = 2", "data = 3", "plan.data"},
      {"shard = \"gradients\"", "shard = \"auto\"", "plan.shard"},
      {"shard = \"gradients\"", "shard = \"weights\"", "plan.shard"},
      {"keep_gathered = false", "keep_gathered = true", "plan.keep_gathered"},
      {"bucket = \"40000\"", "bucket = \"x\"", "plan.bucket"},
      {"reduce = \"float32\"", "reduce = \"int8\"", "plan.reduce"},
      {"schedule = \"1f1b\"", "schedule = \"auto\"", "plan.schedule"},
      {"schedule = \"1f1b\"", "schedule = \"zb-v\"", "plan.cuts"},
      {"schedule = \"1f1b\"", "schedule = \"pipedream\"", "plan.schedule"},
      {"recompute = \"rotor\"", "recompute = \"sqrt\"", "plan.recompute"},
      {cat("\ncuts = \"", first), "\ncuts = \"99", "plan.cuts"},
      {cat("\ncuts = \"", first, "\"\n"), "\n", "plan.cuts"},
      {"memory = \"\"", "memory = \"lots\"", "plan.memory"},
      {"chunks = 2", "chunks = 0", "plan.chunks"},
      {"stage = 1", "stage = 2", "slots.stage"},
      {"stage = 1", "stage = 0", "slots"},
      {"micro_batches = \"0", "micro_batches = \"x", "slots.micro_batches"},
      {"forward = \"a0", "forward = \"z0", "slots.forward"},
      {"forward = \"a0", "forward = \"a1", "slots.forward"},
      {"forward = \"a0", "forward = \"a0/7 a0", "slots.forward"},
      {"backward = \"", "backward = \"loss ", "slots.backward"},
      {"backward = \"", "backward = \"b0 ", "slots.backward"},
      {"block_bytes = 1", "block_bytes = 0", "machine.block_bytes"},
      {"ranks_per_node = ", "ranks_per_node = -", "machine.ranks_per_node"},
      {"within_node = { latency_s", "within_node = { latency", "machine.within_node.latency_s"},
      {"ranks_are_threads = false", "ranks_are_threads = 3", "machine.ranks_are_threads"},
      {"[costs]\ntable", "[costs]\ntables", "costs.table"},
      {"\"layers\"", "\"layer\"", "costs.table"},
      {"[train]\nbatch = 8", "[train]\nbatch = 6", "train.batch"},
      {"device = \"cpu\"", "device = \"tpu\"", "run.device"}};
  for (const auto& [what, with, name] : edits) {
    const std::string error = error_of(replaced(text, what, with));
    EXPECT_NE(error.find(name), std::string::npos) << what << " -> " << with << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(PlanFile, OfAnotherRecipeIsRefusedByTheKey) {
  const PlanFile file = example();
  config::Recipe same = file.recipe;
  same.plan = {};
  EXPECT_NO_THROW(require_plan_of(file, same, "p.toml"));
  const auto error = [&](const std::string& setting) -> std::string {
    config::Recipe recipe = same;
    config::apply_setting(recipe, setting);
    try {
      require_plan_of(file, recipe, "p.toml");
    } catch (const ConfigError& refused) {
      return refused.what();
    }
    return "";
  };
  for (const auto& [setting, key] :
       std::map<std::string, std::string>{{"model.layers=13", "model.layers"},
                                          {"model.tied=false", "model.tied"},
                                          {"model.dropout=0.1", "model.dropout"},
                                          {"train.batch=16", "train.batch"},
                                          {"train.optimizer=sgd", "train.optimizer"},
                                          {"train.precision=bfloat16", "train.precision"},
                                          {"run.device=cuda", "run.device"},
                                          {"plan.pipeline=4", "plan.pipeline"},
                                          {"plan.data=4", "plan.data"},
                                          {"plan.memory=1GiB", "plan.memory"},
                                          {"plan.shard=optimizer", "plan.shard"},
                                          {"plan.schedule=zb-h1", "plan.schedule"}}) {
    EXPECT_NE(error(setting).find(cat("p.toml was made for ", key, " = ")), std::string::npos)
        << setting << ": " << error(setting);
  }
  for (const char* setting :
       {"plan.pipeline=2", "plan.schedule=1f1b", "train.lr=1", "run.keep=2"}) {
    EXPECT_EQ(error(setting), "");
  }
  const test::TempFolder folder;
  const std::string table = (folder.path() / "costs.json").string();
  write_text_file(table, format_costs(file.costs));
  EXPECT_EQ(error("plan.costs=" + table), "");
  CostTable other = file.costs;
  other.loss.seconds += 1;
  write_text_file(table, format_costs(other));
  EXPECT_NE(error("plan.costs=" + table).find("other costs than plan.costs"), std::string::npos);
}

TEST(PlanFile, OperationsAreWords) {
  using enum OperationKind;
  const Operations operations = {{ForwardAll, 0},
                                 {ForwardAll, 1},
                                 {ForwardAll, 2, 1},
                                 {ForwardKeepInput, 3},
                                 {ForwardDrop, 4},
                                 {Loss},
                                 {Backward, 4},
                                 {Backward, 3},
                                 {Backward, 1}};
  EXPECT_EQ(format_operations(operations), "a0-1 a2/1 i3 d4 loss b4-3 b1");
  EXPECT_EQ(parse_operations(format_operations(operations), "here"), operations);
  EXPECT_EQ(parse_operations("", "here"), Operations());
  for (const char* word :
       {"a", "a-1", "a1-0", "b0-1", "c0", "a0/", "b0/1", "a0-", "a0x", "a99999999"}) {
    EXPECT_THROW(parse_operations(word, "here"), ConfigError) << word;
  }
}

}  // namespace penstock::plan
