#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/text.h"
#include "penstock/plan/plan_file.h"
#include "penstock/plan/remedy.h"
#include "penstock/report/layout_text.h"
#include "penstock/report/plan_text.h"
#include "penstock/train/planning.h"

#include "arguments.h"
#include "commands.h"
#include "plan_arguments.h"

namespace penstock::app {

namespace {

using nlohmann::ordered_json;

ordered_json operations_json(const plan::CostTable& costs, const plan::Operations& operations) {
  ordered_json list = ordered_json::array();
  for (const plan::Operation& operation : operations) {
    ordered_json item{{"op", plan::operation_name(operation.kind)}, {"layer", operation.layer}};
    const bool keeps = operation.kind == plan::OperationKind::ForwardAll;
    if (keeps && costs.layers[static_cast<size_t>(operation.layer)].modes.size() > 1) {
      item["save_mode"] = costs.layers[static_cast<size_t>(operation.layer)]
                              .modes[static_cast<size_t>(operation.mode)]
                              .name;
    }
    list.push_back(std::move(item));
  }
  return list;
}

ordered_json remedies_json(const std::vector<plan::Remedy>& remedies) {
  ordered_json list = ordered_json::array();
  for (const plan::Remedy& remedy : remedies) {
    list.push_back({{"change", remedy.change},
                    {"feasible", remedy.fits},
                    {"least_memory_bytes", remedy.least_bytes},
                    {"step_s", remedy.step_s}});
  }
  return list;
}

// time_s is that of one micro-batch's operations; step_s is the whole step.
ordered_json one_rank_json(const PlannedStep& planned, const std::vector<plan::Remedy>& remedies) {
  const plan::Outcome& result = planned.result;
  ordered_json json{{"feasible", result.is_feasible},
                    {"recompute", result.plan.options.recompute},
                    {"limit_bytes", result.limit_bytes()},
                    {"time_s", nullptr},
                    {"step_s", nullptr},
                    {"peak_bytes", nullptr},
                    {"least_memory_bytes", result.most_least_bytes()},
                    {"binding", result.binding.front()},
                    {"unlimited_step_s", result.unlimited_s},
                    {"unlimited_peak_bytes", result.unlimited_bytes},
                    {"slots", result.slots},
                    {"operations", ordered_json::array()}};
  if (result.is_feasible) {
    const plan::Operations operations = result.plan.one_rank_operations();
    json["time_s"] = plan::seconds_of(planned.costs, operations);
    json["step_s"] = result.step_s;
    json["peak_bytes"] = result.most_peak_bytes();
    json["operations"] = operations_json(planned.costs, operations);
  } else {
    json["changes"] = remedies_json(remedies);
  }
  return json;
}

ordered_json pipeline_json(const PlannedStep& planned) {
  const plan::Outcome& result = planned.result;
  ordered_json json{{"feasible", result.is_feasible},
                    {"schedule", result.plan.options.schedule},
                    {"micro_batches", result.micro_batches()},
                    {"limit_bytes", result.limit_bytes()},
                    {"step_s", nullptr},
                    {"bubble", nullptr},
                    {"cuts", result.plan.options.first_layers()},
                    {"rank_of_stage", result.schedule().rank_of},
                    {"peak_bytes", nullptr},
                    {"least_memory_bytes", result.least_bytes},
                    {"binding", result.binding},
                    {"recomputed_forwards", result.recomputed_forwards},
                    {"runners_up", ordered_json::array()}};
  if (result.program.replicas() > 1) {
    json["data"] = result.program.replicas();
    json["shard"] = program::shard_name(result.program.shard);
  }
  for (const report::LayoutRow& row : planned.layouts) {
    json["layouts"].push_back({{"pipeline", row.pipeline},
                               {"data", row.data},
                               {"shard", row.shard},
                               {"feasible", row.is_feasible},
                               {"step_s", row.step_s},
                               {"peak_bytes", row.peak_bytes},
                               {"sent_bytes", row.sent_bytes},
                               {"why_not", row.why_not}});
  }
  if (result.plan.options.is_asynchronous()) {
    const schedule::Schedule schedule = result.schedule();
    json["flush_every"] = schedule.updates;
    json["delay"] = schedule::most_delayed(schedule);
    json["weight_versions"] = schedule::most_versions(schedule);
  }
  if (result.is_feasible) {
    json["step_s"] = result.step_s;
    json["bubble"] = result.bubble;
    json["peak_bytes"] = result.peak_bytes;
  }
  for (const plan::PipelineAnswer::RunnerUp& other : result.runners_up) {
    json["runners_up"].push_back({{"schedule", schedule::kind_name(other.kind)},
                                  {"feasible", other.is_feasible},
                                  {"step_s", other.step_s},
                                  {"peak_bytes", other.peak_bytes}});
  }
  return json;
}

ordered_json spent_json(const plan::Spent& spent) {
  ordered_json list = ordered_json::array();
  for (const plan::Spent::Entry& one : spent.entries) {
    list.push_back({{"name", one.name}, {"times", one.times}, {"seconds", one.seconds}});
  }
  return list;
}

void print_json(const PlannedStep& planned, const std::vector<plan::Remedy>& remedies) {
  ordered_json json =
      planned.recipe.plan.ranks() == 1 ? one_rank_json(planned, remedies) : pipeline_json(planned);
  json["planning"] = spent_json(planned.result.spent);
  std::printf("%s\n", json.dump().c_str());
}

// What would make a step fit that does not. A pipeline's certificate says it by rank.
std::vector<plan::Remedy> remedies_of(const PlanArguments& arguments, const PlannedStep& planned) {
  if (planned.result.is_feasible || planned.recipe.plan.ranks() > 1) {
    return {};
  }
  return arguments.has_recipe() ? train::find_remedies(planned.recipe)
                                : plan::find_remedies(planned.costs, planned.result);
}

void write_plan_file(const std::string& name, const PlannedStep& planned) {
  plan::write_plan(
      name,
      {.recipe = planned.recipe,
       .plan = planned.result.plan,
       .costs = planned.costs,
       .machine = planned.machine,
       .predicted = plan::PlanFile::Predicted{.updates = planned.result.program.updates,
                                              .step_s = planned.result.step_s,
                                              .peak_bytes = planned.result.peak_bytes}});
  log_info("wrote ", name);
}

int plan_step(const PlanArguments& arguments, const std::string& out) {
  require_writable(arguments.program);
  require_writable(out);
  if (!out.empty() && !arguments.has_recipe()) {
    throw ConfigError("--out writes a plan to train a recipe by; with --costs alone there is none");
  }
  const PlannedStep planned = make_plan(arguments);
  const plan::Outcome& result = planned.result;
  const std::vector<plan::Remedy> remedies = remedies_of(arguments, planned);
  if (result.is_feasible) {
    write_program_file(arguments, result.program);
    if (!out.empty()) {
      write_plan_file(out, planned);
    }
  }
  if (arguments.recipe.as_json) {
    print_json(planned, remedies);
    return result.is_feasible ? 0 : 1;
  }
  if (!planned.layouts.empty()) {
    std::printf("%s\n", report::layout_table(planned.layouts).c_str());
  }
  std::printf("%s",
              result.is_feasible
                  ? report::plan_page(planned.costs, result).c_str()
                  : report::certificate_page(planned.costs, result, remedies).c_str());
  return result.is_feasible ? 0 : 1;
}

}  // namespace

void add_plan_command(Command& app) {
  Command command = app.add_command(
      "plan", "show what would run, in seconds and bytes, or why it does not fit and what would");
  const auto arguments = std::make_shared<PlanArguments>();
  add_recipe_arguments(command, arguments->recipe);
  add_plan_arguments(command, *arguments);
  command
      .add("--ranks",
           arguments->ranks,
           "ranks of the run: what the recipe leaves open of plan.pipeline, plan.data and "
           "plan.shard is chosen, and the other choices are shown")
      .in_range(int64_t{1}, int64_t{4096})
      .named("N");
  const auto out = std::make_shared<std::string>();
  command
      .add("--out",
           *out,
           "write the plan, with the costs that it rests on, for penstock train --plan")
      .named("FILE")
      .not_empty();
  command.ends_with("Exit code 1 when the step does not fit.");
  command.runs([arguments, out] { return plan_step(*arguments, *out); });
}

}  // namespace penstock::app
