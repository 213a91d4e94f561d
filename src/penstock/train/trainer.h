// Trains a chain of one's own: what a C++ user takes. docs/own_models.md walks through it.
//
//   penstock::train::Trainer trainer(make_chain, dataset, recipe);
//   trainer.run();     // limits, ranks, checkpoints and resuming as the recipe says
//   trainer.check();   // the same bits as one device that keeps everything?
#pragma once

#include <cstdint>
#include <filesystem>

#include "penstock/config/recipe.h"
#include "penstock/data/dataset.h"
#include "penstock/plan/planner.h"
#include "penstock/train/check_recipe.h"
#include "penstock/train/rank_trainer.h"
#include "penstock/train/subject.h"

namespace penstock::train {

// Nothing has to be set up before, and nothing after.
class Trainer {
 public:
  // Every rank calls make_chain for a chain of its own, with the same random numbers. Of the dataset
  // data.split is held out for validation; or it has been split already.
  Trainer(ChainMaker make_chain, data::DatasetPtr dataset, const config::Recipe& recipe);
  Trainer(ChainMaker make_chain, data::Split split, const config::Recipe& recipe);
  // The model of the recipe's family, on the recipe's files.
  explicit Trainer(const config::Recipe& recipe);

  // Trains until train.steps, or Ctrl-C, and saves in run.out. `resume`: a checkpoint, or the folder of
  // an earlier run of any layout. Ranks are threads, or this process is one of them under mpirun. Throws
  // Error. All ranks that are processes get the summary of rank 0's sums; its `losses` are everywhere.
  Summary run(const std::filesystem::path& resume = {});

  // Trains some steps from the start as planned, and on one device that keeps everything and adds up
  // gradients in the order of the plan's ranks. Ranks are threads. Nothing is saved.
  CheckOutcome check(int64_t steps = 3);

  // What would run, or why it does not fit.
  plan::Outcome plan();

  const config::Recipe& recipe() const { return recipe_; }

 private:
  Trainer(Subject subject, const config::Recipe& recipe);
  Summary run_ranks_of(const std::filesystem::path& resume);

  Subject subject_;
  config::Recipe recipe_;
};

}  // namespace penstock::train
