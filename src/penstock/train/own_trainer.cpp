#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/comm/launcher.h"
#include "penstock/config/options.h"
#include "penstock/report/plan_text.h"
#include "penstock/train/layout.h"
#include "penstock/train/planning.h"
#include "penstock/train/ranks.h"
#include "penstock/train/setup.h"
#include "penstock/train/trainer.h"

namespace penstock::train {

Trainer::Trainer(Subject subject, const config::Recipe& recipe)
    : subject_(std::move(subject)), recipe_(recipe) {
  config::require_allowed_values(recipe_, "the recipe");
  config::validate(recipe_);
  prepare_process(recipe_);
}

Trainer::Trainer(const config::Recipe& recipe) : Trainer(family_subject(), recipe) {}

Trainer::Trainer(ChainMaker make_chain, data::DatasetPtr dataset, const config::Recipe& recipe)
    : Trainer(std::move(make_chain), split_samples(std::move(dataset), recipe.data.split), recipe) {
}

Trainer::Trainer(ChainMaker make_chain, data::Split split, const config::Recipe& recipe)
    : Trainer(own_subject(std::move(make_chain), std::move(split)), own_recipe(recipe)) {}

Summary Trainer::run(const std::filesystem::path& resume) {
  install_interrupt_handler();
  try {
    return run_ranks_of(resume);
  } catch (const Error& error) {
    // Under a limit that is too small a run cannot measure all, so it does not know the least that
    // would do: a plan that is measured without the limit does.
    const bool is_too_small = error.exit_code() == ExitCode::Negative && subject_.is_own &&
                              !recipe_.plan.memory.empty() && comm::launched_ranks() <= 1;
    if (is_too_small && !was_interrupted()) {
      if (const plan::Outcome outcome = plan(); !outcome.is_feasible) {
        throw Error(ExitCode::Negative, report::does_not_fit(outcome));
      }
    }
    throw;
  }
}

Summary Trainer::run_ranks_of(const std::filesystem::path& resume) {
  Summary summary;
  run_chosen_ranks(
      recipe_,
      /*asked=*/0,
      [&](comm::Group& group, const config::Recipe& chosen) {
        RankTrainer trainer(chosen, resume, group, PlanSource{.predicts = true}, subject_);
        Summary own = trainer.run();
        if (group.rank() == 0 || !group.shares_memory()) {
          summary = std::move(own);
        }
      },
      subject_);
  return summary;
}

CheckOutcome Trainer::check(int64_t steps) {
  return check_recipe(recipe_, {.steps = steps}, subject_);
}

plan::Outcome Trainer::plan() {
  return plan_ranks(recipe_, recipe_.plan.ranks(), {}, subject_).result;
}

}  // namespace penstock::train
