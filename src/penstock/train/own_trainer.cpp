#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/train/layout.h"
#include "penstock/train/planning.h"
#include "penstock/train/ranks.h"
#include "penstock/train/setup.h"
#include "penstock/train/trainer.h"

namespace penstock::train {

Trainer::Trainer(Subject subject, const config::Recipe& recipe)
    : subject_(std::move(subject)), recipe_(recipe) {
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
