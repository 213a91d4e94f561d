#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/progress.h"
#include "penstock/train/check_recipe.h"
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

void print_json(const train::CheckOutcome& outcome) {
  const train::CheckReport& report = outcome.report;
  nlohmann::ordered_json json{{"equal", report.is_equal},
                              {"steps", report.steps},
                              {"tensors", report.tensors},
                              {"first_difference", nullptr},
                              {"loss", report.loss},
                              {"peak_bytes", report.peak_bytes},
                              {"predicted_peak_bytes", outcome.predicted_peak()},
                              {"limit_bytes", outcome.limit_bytes}};
  if (outcome.has_ranks()) {
    json["rank_peak_bytes"] = report.rank_peak_bytes;
    json["predicted_rank_peak_bytes"] = outcome.predicted_peaks;
    json["tolerance"] = nullptr;
  }
  if (!report.reordered.empty()) {
    json["tolerance"] = {{"why", report.reordered},
                         {"allowed", report.allowed_difference},
                         {"largest", report.largest_difference}};
  }
  if (!report.is_equal) {
    json["first_difference"] = report.first_difference;
  }
  std::printf("%s\n", json.dump().c_str());
}

void print_text(const train::CheckOutcome& outcome) {
  const train::CheckReport& report = outcome.report;
  if (!report.is_equal) {
    std::printf("The plan changes the numbers. The first tensor that differs is %s.\n",
                report.first_difference.c_str());
    return;
  }
  std::printf(
      "%s: %s tensors of %lld steps%s equal those of %s that keeps everything; peak %s, predicted "
      "%s.\n",
      report.reordered.empty() ? "The plan does not change a bit"
                               : "The plan changes no number but by rounding",
      format_count(report.tensors).c_str(),
      static_cast<long long>(report.steps),
      outcome.has_ranks() ? cat(" on ", outcome.predicted_peaks.size(), " ranks").c_str() : "",
      outcome.has_ranks() ? "one device" : "a run",
      format_bytes(report.peak_bytes).c_str(),
      format_bytes(outcome.predicted_peak()).c_str());
  if (!report.reordered.empty()) {
    std::printf(
        "Sums of gradients are compared within a tolerance, all else to the bit: %s. They differ "
        "by "
        "%s of the gradients' norm at most; %s is allowed.\n",
        report.reordered.c_str(),
        format_number(report.largest_difference).c_str(),
        format_number(report.allowed_difference).c_str());
  }
}

int check(const CheckArguments& arguments) {
  require_writable(arguments.plan.program);
  config::Recipe recipe = load_planned_recipe(arguments.plan);
  if (recipe.plan.ranks() > 1) {
    require_no_slots(arguments.plan);
  }
  train::prepare_process(recipe);
  report::Progress progress({.title = "check", .total = arguments.steps});
  const train::CheckOutcome outcome = train::check_recipe(
      recipe,
      {.steps = arguments.steps,
       .rotor = {.slots = arguments.plan.slots},
       .on_plan =
           [&](const program::Program& program) { write_program_file(arguments.plan, program); },
       .on_step = [&](int64_t done) { progress.update(done, {}); }});
  progress.finish();
  if (arguments.plan.recipe.as_json) {
    print_json(outcome);
  } else {
    print_text(outcome);
  }
  return outcome.is_equal() ? 0 : 1;
}

}  // namespace

void add_check_command(Command& app) {
  Command command = app.add_command(
      "check",
      "train a few steps as planned, several ranks as threads, and on one device that keeps "
      "everything and adds up gradients in their order; name the first difference");
  const auto arguments = std::make_shared<CheckArguments>();
  add_recipe_arguments(command, arguments->plan.recipe).required();
  add_plan_arguments(command, arguments->plan);
  command.add("--steps", arguments->steps, "steps to compare; default 3")
      .in_range(int64_t{1}, int64_t{1'000'000})
      .named("N");
  command.ends_with("Exit code 1 when a bit differs, or when the step does not fit.");
  command.runs([arguments] { return check(*arguments); });
}

}  // namespace penstock::app
