// How a run begins: its parts are made, loaded from a checkpoint or started afresh, and its folder
// is made ready.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "penstock/base/clock.h"
#include "penstock/base/file.h"
#include "penstock/base/log.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/run_lock.h"
#include "penstock/checkpoint/together.h"
#include "penstock/comm/group.h"
#include "penstock/data/loader.h"
#include "penstock/train/earlier_run.h"
#include "penstock/train/rank_trainer.h"
#include "penstock/train/reporter.h"
#include "penstock/train/setup.h"
#include "penstock/train/trainer_parts.h"

namespace penstock::train {

namespace fs = std::filesystem;

namespace {

// The same run has the same cuts, whatever is measured today.
void keep_cuts(const config::PlanOptions& stored, config::PlanOptions& ours) {
  const bool is_same = stored.schedule == ours.schedule && stored.pipeline == ours.pipeline;
  if (is_same && ours.cuts.empty()) {
    ours.cuts = stored.cuts;
  }
}

void require_same_data(const std::string& before, const std::string& now) {
  if (before != now) {
    log_warning("the data has changed since the checkpoint (",
                before,
                " then, ",
                now,
                " now): the samples to come are not those it would have seen");
  }
}

// `from` is a checkpoint; empty: a fresh start.
void load_or_start(const fs::path& from, TrainerParts& parts) {
  if (from.empty()) {
    if (!parts.is_own) {
      load_start_weights(parts.recipe.model, parts.chain, parts.parameters, &parts.group);
    }
  } else {
    parts.state =
        checkpoint::load(from, parts.recipe, parts.parameters, parts.optimizer, parts.group);
    require_same_data(parts.state.data, parts.split.train->fingerprint());
    log_info("resuming from ", from.string(), " at step ", parts.state.step);
  }
  const program::Shard shard = parts.parameters.shard();
  if (shard == program::Shard::Optimizer || shard == program::Shard::Gradients) {
    parts.model.replicas->gather_all(parts.parameters);
  }
  parts.state.data = parts.split.train->fingerprint();
  if (parts.scaler) {
    if (parts.state.loss_scale) {
      parts.scaler->set_state(*parts.state.loss_scale);
    }
    parts.state.loss_scale = parts.scaler->state();
  }
}

void log_start(const TrainerParts& parts) {
  const auto& held_out = parts.split.validation;
  log_info(format_count(parts.chain.parameter_count()),
           " parameters; ",
           parts.split.train->size_text(),
           " to train on, ",
           held_out ? held_out->size_text() : "none",
           " held out; ",
           at::get_num_threads(),
           " threads; writing to ",
           parts.recipe.run.out);
}

// Of each batch the rows of this rank's replica, and of those the fields that its layers read.
std::unique_ptr<data::Loader> open_loader(const TrainerParts& parts) {
  const comm::Coordinates place = parts.mesh.coordinates(parts.group.rank());
  const model::Part& part = parts.model.parts[static_cast<size_t>(place.pipeline)];
  const std::vector<std::string> fields = parts.chain.edges().fields_of(part.layers, part.has_loss);
  if (fields.empty()) {
    return nullptr;
  }
  const int64_t rows = parts.recipe.train.batch / parts.mesh.data;
  return std::make_unique<data::Loader>(
      parts.split.train,
      data::LoaderOptions{.seed = parts.seed,
                          .batch = parts.recipe.train.batch,
                          .first_sample = parts.state.samples_seen,
                          .fields = fields,
                          .first_row = place.data * rows,
                          .rows = rows});
}

// Rank 0 does it for all.
void arrange_folder(const std::string& out, const fs::path& from, int64_t step) {
  if (!from.empty() && fs::equivalent(from.parent_path(), out)) {
    // What came after it is given up; from now on the run stands here.
    checkpoint::point_latest(from);
    move_later_steps_aside(out, step);
  } else {
    move_earlier_run_aside(out);
  }
  checkpoint::remove_leftovers(out);
}

// The checkpoint to go on from; empty: none. Rank 0 looks for all: on a shared file system others may not see
// yet what there is.
fs::path find_start(const fs::path& resume, const std::string& out, comm::Group& group) {
  const comm::What what = [] { return std::string("the checkpoint to resume from"); };
  std::string found;
  checkpoint::run_together(group, what, [&] {
    const bool is_auto = resume == kResumeAuto;
    if (group.rank() > 0 || resume.empty() || (is_auto && checkpoint::list_steps(out).empty())) {
      return;
    }
    found =
        fs::canonical(checkpoint::resolve_checkpoint(is_auto ? fs::path(out) : resume)).string();
  });
  return checkpoint::share_text(group, 0, std::move(found), what);
}

// The folder, made where it is not there, for this run alone. Rank 0 has the lock.
std::unique_ptr<checkpoint::RunLock> take_folder(const std::string& out, comm::Group& group) {
  std::unique_ptr<checkpoint::RunLock> lock;
  const PatientScope patience(group);  // a silent owner is watched for a while
  checkpoint::run_together(
      group,
      [] { return std::string("the run's folder"); },
      [&] {
        require_writable_folder(out, "run.out");
        if (group.rank() == 0) {
          lock = std::make_unique<checkpoint::RunLock>(out);
        }
      });
  return lock;
}

// A guess before the first is seen, for run.hours.
double guess_save_seconds(int64_t parameters) {
  constexpr double kBytesOfParameter = 12;  // weights and AdamW's state
  constexpr double kDiskBytesPerSecond = 100e6;
  return kBytesOfParameter * static_cast<double>(parameters) / kDiskBytesPerSecond;
}

}  // namespace

RankTrainer::RankTrainer(const config::Recipe& recipe,
                         const fs::path& resume,
                         comm::Group& group,
                         const PlanSource& source,
                         const Subject& subject)
    : clock_(recipe.run, now_seconds()) {
  if (!resume.empty() && resume != kResumeAuto) {
    find_start(resume, recipe.run.out, group);  // a wrong name makes no folder
  }
  // Before it is known what to go on from: who has the folder may still be writing.
  std::unique_ptr<checkpoint::RunLock> lock = take_folder(recipe.run.out, group);
  begin(recipe, resume, group, source, subject, std::move(lock));
}

void RankTrainer::begin(const config::Recipe& recipe,
                        const fs::path& resume,
                        comm::Group& group,
                        const PlanSource& source,
                        const Subject& subject,
                        std::unique_ptr<checkpoint::RunLock> lock) {
  const fs::path from = find_start(resume, recipe.run.out, group);
  config::Recipe ours = recipe;
  if (ours.plan.is_asynchronous() && !from.empty()) {
    keep_cuts(checkpoint::verified_recipe(from, group).plan, ours.plan);
  }
  parts_ = make_trainer_parts(ours, group, source, subject, std::move(lock));
  TrainerParts& parts = *parts_;
  if (ours.plan.is_asynchronous()) {  // part of the numbers, and so of the checkpoint
    parts.recipe.plan.cuts = plan::cuts_text(parts.model.stages.cuts);
  }
  load_or_start(from, parts);
  // Nobody moves a checkpoint while another rank reads it.
  group.barrier([] { return std::string("the start of training"); });
  if (group.rank() == 0) {
    arrange_folder(recipe.run.out, from, parts.state.step);
    parts.reporter = std::make_unique<Reporter>(recipe, parts.state.step);
  }
  parts.loader = open_loader(parts);
  summary_.first_step = parts.state.step;
  summary_.parameters = parts.chain.parameter_count();
  clock_.expect_saves(guess_save_seconds(summary_.parameters));
  summary_.predicted_rank_peak_bytes = parts.model.predicted_peaks;
  log_start(parts);
}

RankTrainer::RankTrainer(const config::Recipe& recipe,
                         const fs::path& resume,
                         comm::Group& group,
                         bool predicts)
    : RankTrainer(recipe, resume, group, PlanSource{.predicts = predicts}) {}

}  // namespace penstock::train
