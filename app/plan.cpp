#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/pipeline_text.h"
#include "penstock/report/plan_text.h"
#include "penstock/report/table.h"

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
    if (keeps && costs.layers[static_cast<size_t>(operation.layer)].ways.size() > 1) {
      item["way"] = costs.layers[static_cast<size_t>(operation.layer)]
                        .ways[static_cast<size_t>(operation.way)]
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
void print_json(const train::Planned& planned, const std::vector<plan::Remedy>& remedies) {
  const plan::PlanResult& result = planned.result;
  ordered_json json{{"feasible", result.is_feasible},
                    {"recompute", plan::recompute_name(result.plan.recompute)},
                    {"limit_bytes", result.plan.limit_bytes},
                    {"time_s", nullptr},
                    {"step_s", nullptr},
                    {"peak_bytes", nullptr},
                    {"least_memory_bytes", result.least_bytes},
                    {"binding", result.binding},
                    {"unlimited_step_s", result.unlimited_s},
                    {"unlimited_peak_bytes", result.unlimited_bytes},
                    {"slots", result.slots},
                    {"operations", ordered_json::array()}};
  if (result.is_feasible) {
    json["time_s"] = plan::seconds_of(planned.costs, result.plan.operations);
    json["step_s"] = result.step_s;
    json["peak_bytes"] = result.peak_bytes;
    json["operations"] = operations_json(planned.costs, result.plan.operations);
  } else {
    json["changes"] = remedies_json(remedies);
  }
  std::printf("%s\n", json.dump().c_str());
}

ordered_json pipeline_json(const PlannedPipeline& planned) {
  const plan::PipelineResult& result = planned.result;
  const std::vector<int32_t>& cuts = result.pipeline.cuts;
  ordered_json json{{"feasible", result.is_feasible},
                    {"schedule", schedule::kind_name(result.kind)},
                    {"micro_batches", planned.micro_batches()},
                    {"limit_bytes", planned.limit_bytes},
                    {"step_s", nullptr},
                    {"bubble", nullptr},
                    {"cuts", std::vector<int32_t>(cuts.begin() + 1, cuts.end() - 1)},
                    {"rank_of_stage", result.pipeline.schedule.rank_of},
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
  if (schedule::is_asynchronous(result.kind)) {
    json["flush_every"] = result.pipeline.schedule.updates;
    json["delay"] = schedule::most_delayed(result.pipeline.schedule);
    json["weight_versions"] = schedule::most_versions(result.pipeline.schedule);
  }
  if (result.is_feasible) {
    json["step_s"] = result.step_s;
    json["bubble"] = result.bubble;
    json["peak_bytes"] = result.peak_bytes;
  }
  for (const plan::PipelineResult::RunnerUp& other : result.runners_up) {
    json["runners_up"].push_back({{"schedule", schedule::kind_name(other.kind)},
                                  {"feasible", other.is_feasible},
                                  {"step_s", other.step_s},
                                  {"peak_bytes", other.peak_bytes}});
  }
  return json;
}

void print_certificate(const train::Planned& planned, const std::vector<plan::Remedy>& remedies) {
  const plan::PlanResult& result = planned.result;
  const int64_t limit = result.plan.limit_bytes;
  std::printf("It does not fit: %s bytes are allowed, %s more would do.\n\n",
              format_count(limit).c_str(),
              format_count(result.least_bytes - limit).c_str());
  report::Table facts({{""}, {""}});
  facts.add_row(
      {"least limit that fits",
       cat(format_count(result.least_bytes), " bytes (", format_bytes(result.least_bytes), ")")});
  facts.add_row({"what binds there", result.binding});
  facts.add_row({"weights and state", format_bytes(planned.costs.held_bytes())});
  facts.add_row({"step at that limit",
                 cat(format_seconds(result.step_s),
                     ", ",
                     report::overhead_text(result),
                     " (",
                     format_bytes(result.unlimited_bytes),
                     ")")});
  std::printf("%s", facts.text().c_str());
  if (remedies.empty()) {
    return;
  }
  std::printf("\nWhat a change would do:\n\n");
  report::Table changes({{"change"},
                         {"least limit", report::Align::Right},
                         {"fits"},
                         {"step", report::Align::Right}});
  changes.add_row({cat("plan.memory = \"", result.least_bytes, "\""),
                   format_bytes(result.least_bytes),
                   "yes",
                   format_seconds(result.step_s)});
  for (const plan::Remedy& remedy : remedies) {
    changes.add_row({remedy.change,
                     format_bytes(remedy.least_bytes),
                     remedy.fits ? "yes" : "no",
                     format_seconds(remedy.step_s)});
  }
  std::printf("%s", changes.text().c_str());
}

int plan_pipeline(const PlanArguments& arguments) {
  const PlannedPipeline planned = make_pipeline_plan(arguments);
  const plan::PipelineResult& result = planned.result;
  if (result.is_feasible) {
    write_program_file(arguments, result.program);
  }
  if (arguments.recipe.as_json) {
    std::printf("%s\n", pipeline_json(planned).dump().c_str());
    return result.is_feasible ? 0 : 1;
  }
  if (!planned.layouts.empty()) {
    std::printf("%s\n", report::layout_table(planned.layouts).c_str());
  }
  if (result.is_feasible) {
    std::printf("%s\n%s\n",
                report::pipeline_table(planned.costs, result).c_str(),
                report::pipeline_line(result, planned.limit_bytes).c_str());
  } else {
    std::printf("%s", report::pipeline_certificate(result, planned.limit_bytes).c_str());
  }
  return result.is_feasible ? 0 : 1;
}

int plan_step(const PlanArguments& arguments) {
  require_writable(arguments.program);
  if (asks_for_pipeline(arguments)) {
    return plan_pipeline(arguments);
  }
  const train::Planned planned = make_plan(arguments);
  const bool has_recipe = !arguments.recipe.recipe.empty();
  std::vector<plan::Remedy> remedies;
  if (!planned.result.is_feasible) {
    remedies = has_recipe ? train::find_remedies(load_planned_recipe(arguments))
                          : plan::find_remedies(planned.costs, planned.result.plan);
  } else {
    write_program_file(arguments, planned.result.program);
  }
  if (arguments.recipe.as_json) {
    print_json(planned, remedies);
  } else if (!planned.result.is_feasible) {
    print_certificate(planned, remedies);
  } else {
    const std::string& description = planned.costs.description;
    std::printf("%s%s\n%s",
                description.empty() ? "" : cat(description, "\n\n").c_str(),
                report::plan_table(planned.costs, planned.result).c_str(),
                report::plan_totals(planned.costs, planned.result).c_str());
  }
  return planned.result.is_feasible ? 0 : 1;
}

}  // namespace

void add_plan_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "plan", "show what would run, in seconds and bytes, or why it does not fit and what would");
  const auto arguments = std::make_shared<PlanArguments>();
  add_recipe_arguments(*command, arguments->recipe, /*is_required=*/false);
  add_text_option(*command,
                  "--costs",
                  arguments->costs,
                  "plan with this cost table (docs/planning.md); without a recipe, the table alone")
      ->type_name("FILE");
  add_plan_arguments(*command, *arguments);
  command
      ->add_option("--ranks",
                   arguments->ranks,
                   "ranks of the run: what the recipe leaves open of plan.pipeline, plan.data and "
                   "plan.shard is chosen, and the other choices are shown")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->type_name("N");
  command->footer("Exit code 1 when the step does not fit.");
  command->callback(
      [arguments, &action] { action = [arguments] { return plan_step(*arguments); }; });
}

}  // namespace penstock::app
