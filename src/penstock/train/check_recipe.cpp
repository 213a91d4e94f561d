#include "penstock/train/check_recipe.h"

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/text.h"
#include "penstock/comm/launcher.h"
#include "penstock/data/loader.h"
#include "penstock/optim/onebit_steps.h"
#include "penstock/plan/one_rank.h"
#include "penstock/plan/rank_holdings.h"
#include "penstock/report/plan_text.h"
#include "penstock/train/batch_tensors.h"
#include "penstock/train/check_ranks.h"
#include "penstock/train/layout.h"
#include "penstock/train/machine.h"
#include "penstock/train/planning.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/setup.h"

namespace penstock::train {

namespace {

// After their warm-up replicas send 1-bit compressed values, and none of them has the gradient that
// one device has.
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
                          "\" sends 1-bit compressed values between replicas after step ",
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

// Batches as training would have them, one after the other.
class Batches {
 public:
  Batches(const config::Recipe& recipe, const Subject& subject)
      : loader_(subject.open_data(recipe).train,
                {.seed = static_cast<uint64_t>(recipe.train.seed), .batch = recipe.train.batch}) {}

  CheckOptions options(const CheckRequest& request) {
    return {.steps = request.steps,
            .batch =
                [this](int64_t) {
                  batch_ = loader_.next();
                  return as_tensors(batch_);
                },
            .on_step = request.on_step};
  }

 private:
  data::Loader loader_;
  data::Batch batch_;
};

// One device that keeps everything.
plan::OneRankAnswer keep_everything(const plan::CostTable& costs,
                                    int32_t micro_batches,
                                    const config::Recipe& recipe,
                                    const model::Chain& chain) {
  return plan::solve_one_rank(
      costs,
      {.recompute = plan::Recompute::None,
       .micro_batches = micro_batches,
       .holdings = plan::whole_holdings(model_sizes(recipe, chain), costs, find_machine(recipe))});
}

// Where the recipe leaves open what replicas divide, the plan says it.
config::Recipe with_plan(config::Recipe recipe, const program::Program& program) {
  recipe.plan.pipeline = program.mesh.pipeline;
  recipe.plan.data = program.mesh.data;
  recipe.plan.shard = program::shard_name(program.shard);
  return recipe;
}

CheckOutcome check_one_rank(const config::Recipe& recipe,
                            const CheckRequest& request,
                            const Subject& subject) {
  const Planned planned = plan_recipe(recipe, request.rotor, subject);
  if (!planned.result.is_feasible) {
    throw Error(ExitCode::Negative, report::does_not_fit(planned.result));
  }
  if (request.on_plan) {
    request.on_plan(planned.result.program);
  }
  Batches batches(recipe, subject);
  CheckOptions options = batches.options(request);
  options.device = open_device(recipe);
  const model::Chain chain = subject.make_chain(recipe, options.device);
  const plan::OneRankAnswer kept =
      keep_everything(planned.costs, planned.result.micro_batches(), recipe, chain);
  return {.report = check_plan(recipe, chain, planned.result.program, kept.program, options),
          .predicted_peaks = planned.result.peak_bytes};
}

CheckOutcome check_several_ranks(const config::Recipe& asked,
                                 const CheckRequest& request,
                                 const Subject& subject) {
  const PlannedRanks planned = plan_ranks(asked, asked.plan.ranks(), request.rotor, subject);
  const plan::Outcome& result = planned.result;
  if (!result.is_feasible) {
    throw Error(ExitCode::Negative, report::does_not_fit(result));
  }
  if (request.on_plan) {
    request.on_plan(result.program);
  }
  const config::Recipe recipe = with_plan(asked, result.program);
  Batches batches(recipe, subject);
  const auto make = [&](const device::Device& device) {
    return subject.make_chain(recipe, device);
  };
  const plan::OneRankAnswer kept =
      keep_everything(planned.costs, result.micro_batches(), recipe, make(open_device(recipe)));
  return {.report = check_ranks(recipe,
                                make,
                                result.program,
                                {result.schedule().rank_of, result.cuts()},
                                kept.program,
                                batches.options(request)),
          .predicted_peaks = result.peak_bytes};
}

}  // namespace

CheckOutcome check_recipe(const config::Recipe& asked,
                          const CheckRequest& request,
                          const Subject& subject) {
  install_interrupt_handler();
  config::Recipe recipe = asked;
  // The CPU always is; on a GPU nothing else can be equal to the bit.
  recipe.run.deterministic = true;
  const bool has_ranks = recipe.plan.ranks() > 1;
  if (has_ranks) {
    require_checkable_ranks(recipe);
    require_whole_gradients(recipe, request.steps);
  }
  CheckOutcome outcome = has_ranks ? check_several_ranks(recipe, request, subject)
                                   : check_one_rank(recipe, request, subject);
  outcome.limit_bytes = recipe.plan.memory_bytes();
  const CheckReport& report = outcome.report;
  if (report.first_difference.empty() && report.steps < request.steps) {
    throw Error(ExitCode::Negative,
                cat("check was stopped by ",
                    interrupt_name(),
                    " after ",
                    report.steps,
                    " of ",
                    request.steps,
                    " steps; up to there nothing differs"));
  }
  return outcome;
}

}  // namespace penstock::train
