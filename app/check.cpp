#include "penstock/train/check.h"

#include <cstdio>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/data/loader.h"
#include "penstock/report/plan_text.h"
#include "penstock/report/progress.h"
#include "penstock/train/planning.h"
#include "penstock/train/setup.h"

#include "arguments.h"
#include "commands.h"
#include "plan_arguments.h"

namespace penstock::app {

namespace {

struct CheckArguments {
  PlanArguments plan;
  int64_t steps = 3;
};

void print_json(const train::CheckReport& report, const plan::PlanResult& result) {
  nlohmann::ordered_json json{{"equal", report.is_equal},
                              {"steps", report.steps},
                              {"tensors", report.tensors},
                              {"first_difference", nullptr},
                              {"loss", report.loss},
                              {"peak_bytes", report.peak_bytes},
                              {"predicted_peak_bytes", result.peak_bytes},
                              {"limit_bytes", result.plan.limit_bytes}};
  if (!report.is_equal) {
    json["first_difference"] = report.first_difference;
  }
  std::printf("%s\n", json.dump().c_str());
}

void print_text(const train::CheckReport& report, const plan::PlanResult& result) {
  if (!report.is_equal) {
    std::printf("The plan changes the numbers. The first tensor that differs is %s.\n",
                report.first_difference.c_str());
    return;
  }
  std::printf(
      "The plan does not change a bit: %s tensors of %lld steps equal those of a run that keeps "
      "everything; peak %s, predicted %s.\n",
      format_count(report.tensors).c_str(),
      static_cast<long long>(report.steps),
      format_bytes(report.peak_bytes).c_str(),
      format_bytes(result.peak_bytes).c_str());
}

int check_recipe(const CheckArguments& arguments) {
  require_writable(arguments.plan.program);
  config::Recipe recipe = load_planned_recipe(arguments.plan);
  if (recipe.plan.pipeline > 1) {
    throw ConfigError(cat("check compares plans of one rank, and plan.pipeline is ",
                          recipe.plan.pipeline,
                          "; tests/run/pipeline_test.cpp compares pipelines with one device"));
  }
  // The CPU always is; on a GPU nothing else can be equal to the bit.
  recipe.run.deterministic = true;
  train::prepare_process(recipe);
  const data::Split split = train::open_data(recipe);
  const train::Planned planned = train::plan_recipe(recipe, {.slots = arguments.plan.slots});
  if (!planned.result.is_feasible) {
    throw Error(ExitCode::Negative, report::does_not_fit(planned.result));
  }
  write_program_file(arguments.plan, planned.result.program);
  const plan::PlanResult kept = plan::make_plan(
      planned.costs,
      {.recompute = plan::Recompute::None, .micro_batches = planned.result.plan.micro_batches});

  install_interrupt_handler();  // from here on somebody asks for it
  data::Loader loader(
      split.train, {.seed = static_cast<uint64_t>(recipe.train.seed), .batch = recipe.train.batch});
  data::Batch batch;
  report::Progress progress({.title = "check", .total = arguments.steps});
  train::CheckOptions options{.steps = arguments.steps};
  options.device = train::open_device(recipe);
  options.batch = [&](int64_t) {
    batch = loader.next();
    return train::as_tensors(batch);
  };
  options.on_step = [&](int64_t done) { progress.update(done, {}); };
  const train::CheckReport report =
      train::check_plan(recipe,
                        train::make_chain(recipe.model, options.device),
                        planned.result.program,
                        kept.program,
                        options);
  progress.finish();
  if (report.first_difference.empty() && report.steps < arguments.steps) {
    throw Error(ExitCode::Negative,
                cat("check was stopped by ",
                    interrupt_name(),
                    " after ",
                    report.steps,
                    " of ",
                    arguments.steps,
                    " steps; up to there nothing differs"));
  }
  if (arguments.plan.recipe.as_json) {
    print_json(report, planned.result);
  } else {
    print_text(report, planned.result);
  }
  return report.is_equal ? 0 : 1;
}

}  // namespace

void add_check_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "check", "train a few steps as planned and keeping everything; name the first difference");
  const auto arguments = std::make_shared<CheckArguments>();
  add_recipe_arguments(*command, arguments->plan.recipe);
  add_plan_arguments(*command, arguments->plan);
  command->add_option("--steps", arguments->steps, "steps to compare; default 3")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->type_name("N");
  command->footer("Exit code 1 when a bit differs, or when the step does not fit.");
  command->callback(
      [arguments, &action] { action = [arguments] { return check_recipe(*arguments); }; });
}

}  // namespace penstock::app
