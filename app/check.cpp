#include "penstock/train/check.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/comm/launcher.h"
#include "penstock/data/loader.h"
#include "penstock/optim/onebit_steps.h"
#include "penstock/plan/rank_holdings.h"
#include "penstock/report/plan_text.h"
#include "penstock/report/progress.h"
#include "penstock/train/check_ranks.h"
#include "penstock/train/machine.h"
#include "penstock/train/planning.h"
#include "penstock/train/rank_holdings.h"
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

struct Outcome {
  train::CheckReport report;
  std::vector<int64_t> predicted_peaks;  // of each rank
  int64_t limit_bytes = 0;

  bool has_ranks() const { return predicted_peaks.size() > 1; }
  int64_t predicted_peak() const {
    return *std::max_element(predicted_peaks.begin(), predicted_peaks.end());
  }
};

void print_json(const Outcome& outcome) {
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

void print_text(const Outcome& outcome) {
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

// After their warm-up replicas send signs, and none of them has the gradient that one device has.
void require_whole_gradients(const config::Recipe& recipe, int64_t steps) {
  const config::TrainOptions& train = recipe.train;
  if (recipe.plan.data == 1 || !train.is_one_bit()) {
    return;
  }
  int64_t whole = 0;
  if (train.optimizer == "zeroone-adam") {
    while (whole < steps && optim::updates_variance(train, whole + 1)) {
      ++whole;
    }
  } else {
    whole = optim::freeze_step(train);
  }
  if (steps > whole) {
    throw ConfigError(cat("check compares with one device, and train.optimizer = \"",
                          train.optimizer,
                          "\" sends signs between replicas after step ",
                          whole,
                          ", which one device has none of; try ",
                          whole > 0 ? cat("--steps ", whole, " or ") : "",
                          "--set train.optimizer=",
                          train.optimizer == "onebit-lamb" ? "lamb" : "adamw"));
  }
}

void require_checkable_ranks(const config::Recipe& recipe) {
  const config::PlanOptions& plan = recipe.plan;
  if (plan.is_asynchronous()) {
    throw ConfigError(
        cat("check compares ranks with one device, and plan.schedule = \"",
            plan.schedule,
            "\" gives other numbers than one device by design (docs/pipelines.md, "
            "\"Asynchronous\"); try a schedule that is drained for each update, as in --schedule "
            "1f1b"));
  }
  if (const int64_t launched = comm::launched_ranks(); launched > 1) {
    throw ConfigError(cat("check runs the ranks of a plan as threads, and a launcher started ",
                          launched,
                          " processes; run it without the launcher"));
  }
}

// With everything that is the same for one rank and for several.
Outcome compare_steps(
    const CheckArguments& arguments,
    const config::Recipe& recipe,
    const data::Split& split,
    const std::function<train::CheckReport(const train::CheckOptions&)>& compare) {
  install_interrupt_handler();  // from here on somebody asks for it
  data::Loader loader(
      split.train, {.seed = static_cast<uint64_t>(recipe.train.seed), .batch = recipe.train.batch});
  data::Batch batch;
  report::Progress progress({.title = "check", .total = arguments.steps});
  train::CheckOptions options{.steps = arguments.steps};
  options.batch = [&](int64_t) {
    batch = loader.next();
    return train::as_tensors(batch);
  };
  options.on_step = [&](int64_t done) { progress.update(done, {}); };
  Outcome outcome{.report = compare(options), .limit_bytes = recipe.plan.memory_bytes()};
  progress.finish();
  return outcome;
}

// One device that keeps everything.
plan::OneRankAnswer keep_everything(const plan::CostTable& costs,
                                    int32_t micro_batches,
                                    const config::Recipe& recipe,
                                    const model::Chain& chain) {
  return plan::solve_one_rank(
      costs,
      {.recompute = plan::Recompute::None,
       .micro_batches = micro_batches,
       .holdings = plan::whole_holdings(
           train::model_sizes(recipe, chain), costs, train::find_machine(recipe))});
}

Outcome check_one_rank(const CheckArguments& arguments,
                       const config::Recipe& recipe,
                       const data::Split& split) {
  const train::Planned planned = train::plan_recipe(recipe, {.slots = arguments.plan.slots});
  if (!planned.result.is_feasible) {
    throw Error(ExitCode::Negative, report::does_not_fit(planned.result));
  }
  write_program_file(arguments.plan, planned.result.program);
  Outcome outcome = compare_steps(arguments, recipe, split, [&](const train::CheckOptions& common) {
    train::CheckOptions options = common;
    options.device = train::open_device(recipe);
    const model::Chain chain = train::make_chain(recipe.model, options.device);
    const plan::OneRankAnswer kept =
        keep_everything(planned.costs, planned.result.micro_batches(), recipe, chain);
    return train::check_plan(recipe, chain, planned.result.program, kept.program, options);
  });
  outcome.predicted_peaks = planned.result.peak_bytes;
  return outcome;
}

// Where the recipe leaves open what replicas divide, the plan says it.
config::Recipe with_plan(config::Recipe recipe, const program::Program& program) {
  recipe.plan.pipeline = program.mesh.pipeline;
  recipe.plan.data = program.mesh.data;
  recipe.plan.shard = program::shard_name(program.shard);
  return recipe;
}

Outcome check_several_ranks(const CheckArguments& arguments,
                            const config::Recipe& asked,
                            const data::Split& split) {
  const PlannedStep planned = make_plan(arguments.plan);
  const plan::Outcome& result = planned.result;
  if (!result.is_feasible) {
    throw Error(ExitCode::Negative, report::does_not_fit(result));
  }
  write_program_file(arguments.plan, result.program);
  const config::Recipe recipe = with_plan(asked, result.program);
  Outcome outcome =
      compare_steps(arguments, recipe, split, [&](const train::CheckOptions& options) {
        const model::Chain chain = train::make_chain(recipe.model, train::open_device(recipe));
        const plan::OneRankAnswer kept =
            keep_everything(planned.costs, result.micro_batches(), recipe, chain);
        return train::check_ranks(recipe,
                                  chain,
                                  result.program,
                                  {result.schedule().rank_of, result.cuts()},
                                  kept.program,
                                  options);
      });
  outcome.predicted_peaks = result.peak_bytes;
  return outcome;
}

int check_recipe(const CheckArguments& arguments) {
  require_writable(arguments.plan.program);
  config::Recipe recipe = load_planned_recipe(arguments.plan);
  const bool has_ranks = recipe.plan.ranks() > 1;
  if (has_ranks) {
    require_checkable_ranks(recipe);
    require_whole_gradients(recipe, arguments.steps);
  }
  // The CPU always is; on a GPU nothing else can be equal to the bit.
  recipe.run.deterministic = true;
  train::prepare_process(recipe);
  const data::Split split = train::open_data(recipe);
  const Outcome outcome = has_ranks ? check_several_ranks(arguments, recipe, split)
                                    : check_one_rank(arguments, recipe, split);
  const train::CheckReport& report = outcome.report;
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
    print_json(outcome);
  } else {
    print_text(outcome);
  }
  return report.is_equal ? 0 : 1;
}

}  // namespace

void add_check_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "check",
      "train a few steps as planned, several ranks as threads, and on one device that keeps "
      "everything and adds up gradients in their order; name the first difference");
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
