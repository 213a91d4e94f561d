// The run as a loop of steps. Begin at take_steps(): one step, or several of an asynchronous pipeline.
// trainer_start.cpp is how a run begins, trainer_output.cpp what it leaves.
#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/log.h"
#include "penstock/checkpoint/run_lock.h"
#include "penstock/data/loader.h"
#include "penstock/optim/lr_schedule.h"
#include "penstock/optim/optimizer.h"
#include "penstock/report/run_status.h"
#include "penstock/run/executor.h"
#include "penstock/train/asynchronous.h"
#include "penstock/train/batch_tensors.h"
#include "penstock/train/diverged.h"
#include "penstock/train/rank_sums.h"
#include "penstock/train/rank_trainer.h"
#include "penstock/train/reporter.h"
#include "penstock/train/setup.h"
#include "penstock/train/trainer_output.h"
#include "penstock/train/trainer_parts.h"
#include "penstock/train/trainer_replicas.h"
#include "penstock/train/trainer_validation.h"

namespace penstock::train {

namespace {

// Whether it is time for what comes every so many steps, when some have just been done.
bool is_due(int64_t every, int64_t before, int64_t now) {
  return every > 0 && now / every > before / every;
}

// What has come up since the last step, on any rank; all get the same answer.
struct Events {
  bool was_interrupted = false, is_late = false, is_save_due = false;
  bool lost_folder = false;  // to another run
};

// All ranks call it once a step.
Events ask_ranks(const RunClock& clock, const TrainerParts& parts) {
  const bool decides = parts.group.rank() == 0;  // clocks differ
  const std::vector<double> sums = sum_ranks({was_interrupted() ? 1.0 : 0.0,
                                              decides && clock.has_to_end() ? 1.0 : 0.0,
                                              decides && clock.is_save_due() ? 1.0 : 0.0,
                                              parts.lock && parts.lock->was_lost() ? 1.0 : 0.0},
                                             parts.group);
  return {sums[0] > 0, sums[1] > 0, sums[2] > 0, sums[3] > 0};
}

// What this rank has of the batches of the next steps, one after the other: of one step, but for
// asynchronous pipelines.
data::Batch next_batches(const TrainerParts& parts, int64_t count) {
  data::Batch all{.first_sample = parts.state.samples_seen,
                  .samples = count * parts.recipe.train.batch};
  if (!parts.loader) {
    return all;
  }
  all = parts.loader->next();
  for (int64_t i = 1; i < count; ++i) {
    data::append(all, parts.loader->next());
  }
  return all;
}

// What the loss of each update is divided by: the targets that count, of all replicas. Ranks without the
// loss need none.
std::vector<int64_t> count_targets(const TrainerParts& parts,
                                   const model::Fields& batch,
                                   int64_t updates) {
  const int32_t stage = parts.mesh.coordinate(parts.group.rank(), comm::Axis::Pipeline);
  const bool has_loss = parts.model.parts[static_cast<size_t>(stage)].has_loss;
  std::vector<int64_t> counts(static_cast<size_t>(updates), 1);
  const int64_t rows = run::rows_in(batch) / updates;
  for (int64_t i = 0; has_loss && i < updates; ++i) {
    counts[static_cast<size_t>(i)] =
        parts.chain.loss().count(run::targets_of(parts.chain, run::rows_of(batch, i * rows, rows)));
  }
  if (parts.mesh.data > 1) {
    const double own = has_loss ? static_cast<double>(counts[0]) : 0;
    counts[0] = static_cast<int64_t>(sum_ranks(own, parts.group));
  }
  return counts;
}

}  // namespace

// The training steps that one run of a program takes: one, or several of an asynchronous pipeline,
// which has updates between its micro-batches.
struct RankTrainer::Steps {
  int64_t before = 0;  // steps done when they began
  int64_t count = 1;
  double loss_scale = 1;

  // What came of them, one for each.
  std::vector<double> losses;
  std::vector<double> norms;  // of the gradients
  bool was_applied = true;    // the last one; false: its gradients overflowed
};

Summary RankTrainer::run() {
  try {
    train_and_save();
  } catch (const std::exception& error) {
    if (parts_->reporter && parts_->lock->is_held()) {
      parts_->reporter->show_end(report::kFailed, error.what());
    }
    throw;
  }
  if (parts_->reporter) {
    parts_->reporter->show_end(summary_.was_interrupted ? report::kInterrupted : report::kFinished,
                               summary_.stop_reason);
  }
  return summary_;
}

void RankTrainer::train_and_save() {
  TrainerParts& parts = *parts_;
  const double began = now_seconds();
  train();
  summary_.was_interrupted = parts.state.step < parts.recipe.train.steps;
  if (!summary_.was_interrupted) {
    summary_.validation_loss = validate(parts);
  }
  // A run that was stopped right after a save has saved that step already.
  if (!summary_.losses.empty() && saved_step_ != parts.state.step) {
    note_checkpoint(save_at_the_end(parts));
  }
  finish_summary(now_seconds() - began);
  if (parts.recipe.run.sample_tokens > 0 && !summary_.was_interrupted) {
    summary_.sample = write_sample(parts);
  }
}

// All steps, and what comes every so many of them.
void RankTrainer::train() {
  TrainerParts& parts = *parts_;
  const config::RunOptions& every = parts.recipe.run;
  const int64_t steps = parts.recipe.train.steps;
  bool is_to_check = false, is_to_validate = false, is_to_save = false;
  if (parts.state.step < steps && clock_.has_to_end()) {
    log_warning("run.hours = ", every.hours, " may be too short for a single step and its save");
  }
  while (parts.state.step < steps) {
    const Events events = ask_ranks(clock_, parts);
    if (events.lost_folder) {
      require_folder(parts);
    }
    // Replicas that have the same weights: only those can be saved.
    if ((events.was_interrupted || events.is_late) && parts.optimizer.replicas_agree()) {
      summary_.stop_reason = !events.was_interrupted ? "run.hours"
                             : was_interrupted()     ? interrupt_name()
                                                     : "a signal to another rank";
      break;
    }
    const int64_t before = parts.state.step;
    const double began = now_seconds();
    take_steps();
    const int64_t done = parts.state.step;
    is_to_check = is_to_check || is_due(every.check_replicas, before, done);
    is_to_validate = is_to_validate || is_due(every.validate_every, before, done);
    is_to_save = is_to_save || events.is_save_due || is_due(every.save_every, before, done);
    // Replicas that move by themselves for some steps have no weights in common until they meet: what
    // is due waits. After the last step run() validates and saves.
    const bool can_stand = done < steps && parts.optimizer.replicas_agree();
    if (can_stand && std::exchange(is_to_check, false)) {
      check_replicas(parts);
    }
    if (can_stand && std::exchange(is_to_validate, false)) {
      summary_.validation_loss = validate(parts);
    }
    clock_.step_took(now_seconds() - began);
    if (!can_stand) {
      continue;
    }
    if (std::exchange(is_to_save, false)) {
      save_on_the_way();
    }
  }
  if (parts.reporter) {
    parts.reporter->finish();
  }
}

// The run can live without one of these: the next is tried when it is due.
void RankTrainer::save_on_the_way() {
  const double began = now_seconds();
  try {
    note_checkpoint(save_checkpoint(*parts_));
  } catch (const FileError& error) {
    log_warning(error.what(), "; the run goes on, and saves again in due time");
  }
  clock_.save_took(now_seconds() - began);
}

void RankTrainer::note_checkpoint(const std::filesystem::path& checkpoint) {
  summary_.checkpoint = checkpoint;
  saved_step_ = parts_->state.step;
  if (parts_->reporter) {
    parts_->reporter->note_checkpoint(checkpoint);
  }
}

// One training step: a batch goes through the program, which also moves the weights (the optimizer is
// the executor's Stepper). An asynchronous pipeline takes several steps in one run.
void RankTrainer::take_steps() {
  TrainerParts& parts = *parts_;
  const double began = now_seconds();
  const int64_t before = parts.state.step;
  Steps steps{.before = before,
              .count = steps_at_once(parts.recipe, before),
              .loss_scale = parts.scaler ? parts.scaler->scale() : 1};
  // Which program: replicas may exchange something else now, and a run may take fewer steps at once.
  TrainerParts::Variant& variant = parts.next_variant(steps.count);
  run::Executor& executor = *variant.executor;
  const data::Batch batch = next_batches(parts, steps.count);
  const model::Fields fields = as_tensors(batch);
  const run::StepInput input{.batch = fields,
                             .first_sample = batch.first_sample,
                             .samples = batch.samples,
                             .first_row = batch.first_row,
                             .counts = count_targets(parts, fields, steps.count),
                             .shapes = field_shapes(*parts.split.train),
                             .micro_batches = steps.count * parts.recipe.plan.micro_batches,
                             .seed = parts.seed,
                             .step = before,
                             .loss_scale = steps.loss_scale,
                             .updates = update_settings(steps)};

  // Its own mean of the losses is dropped: learn_outcome() has that of all ranks.
  executor.run(input, parts.optimizer);
  // The record ends when the run does.
  const double record_began = now_seconds() - executor.measured().seconds;
  learn_outcome(executor, steps);

  parts.state.step = before + steps.count;
  parts.state.samples_seen = batch.first_sample + batch.samples;
  payload_ = {.sent_bytes = executor.sent_bytes(),
              .predicted_bytes = executor.rank_program().sent_bytes()};
  variant.records.add({executor.measured(), record_began}, steps.count);
  show(steps, (now_seconds() - began) / static_cast<double>(steps.count));
}

// Of each of the steps' updates.
std::vector<run::UpdateSettings> RankTrainer::update_settings(const Steps& steps) const {
  const config::Recipe& recipe = parts_->recipe;
  const int32_t stage = parts_->mesh.coordinate(parts_->group.rank(), comm::Axis::Pipeline);
  std::vector<run::UpdateSettings> all;
  for (int64_t step = steps.before; step < steps.before + steps.count; ++step) {
    run::UpdateSettings& settings =
        all.emplace_back(run::UpdateSettings{.rate = optim::rate_at(recipe.train, step),
                                             .clip = recipe.train.clip,
                                             .loss_scale = steps.loss_scale});
    settings.rate.lr *= rate_factor(recipe.plan, stage, step);
  }
  return all;
}

// From what this rank knows of the steps, once they have run, to what all ranks know.
void RankTrainer::learn_outcome(const run::Executor& executor, Steps& steps) {
  TrainerParts& parts = *parts_;
  if (parts.model.replicas) {
    const ReplicaStep step = gather_replicas(executor, parts.group);
    steps.losses = {step.loss};
    summary_.sent_bytes = step.sent_bytes;
  } else {
    std::vector<double> sums = executor.losses();  // they are with one of the ranks
    for (const run::Updated& updated : executor.outcomes()) {
      sums.push_back(updated.norm * updated.norm);
    }
    sums = sum_ranks(sums, parts.group);
    const auto squares = sums.begin() + steps.count;
    steps.losses.assign(sums.begin(), squares);
    std::transform(squares, sums.end(), std::back_inserter(steps.norms), [](double square) {
      return std::sqrt(square);
    });
  }
  // A program of one update has one norm for all ranks. The norms above are for asynchronous
  // pipelines, whose ranks update alone.
  if (executor.has_common_norm()) {
    steps.norms = {executor.outcomes().back().norm};
  }
  for (size_t i = 0; i < steps.losses.size(); ++i) {
    if (!std::isfinite(steps.losses[i])) {
      fail_diverged("loss", steps.before + static_cast<int64_t>(i) + 1, parts.recipe.train);
    }
  }
  const std::vector<run::Updated>& outcomes = executor.outcomes();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    adjust_loss_scale(outcomes[i], steps.before + static_cast<int64_t>(i) + 1);
  }
  steps.was_applied = outcomes.back().was_applied;
}

// A step whose gradients overflowed was not applied: in float16 the loss scale falls, elsewhere the
// run has diverged.
void RankTrainer::adjust_loss_scale(const run::Updated& updated, int64_t step) {
  TrainerParts& parts = *parts_;
  if (!parts.scaler) {
    if (!updated.was_applied) {
      fail_diverged("gradient", step, parts.recipe.train);
    }
    return;
  }
  if (updated.was_applied) {
    parts.scaler->step_was_clean();
  } else {
    parts.scaler->step_overflowed();
    ++summary_.skipped_steps;
    log_info("step ",
             step,
             ": gradients overflow at a loss scale of ",
             parts.state.loss_scale->scale,
             "; the step is skipped, the scale is now ",
             parts.scaler->scale());
  }
  if (parts.scaler->is_stuck()) {
    fail_stuck_scale(parts.scaler->scale(), step, parts.recipe.train);
  }
  parts.state.loss_scale = parts.scaler->state();
}

void RankTrainer::show(const Steps& steps, double seconds) {
  const TrainerParts& parts = *parts_;
  summary_.losses.insert(summary_.losses.end(), steps.losses.begin(), steps.losses.end());
  if (!parts.reporter) {
    return;
  }
  for (int64_t i = 0; i < steps.count; ++i) {
    const size_t index = static_cast<size_t>(i);
    parts.reporter->show_step(
        steps.before + i + 1,
        {.loss = steps.losses[index],
         .lr = optim::rate_at(parts.recipe.train, steps.before + i).lr,
         .gradient_norm = steps.was_applied ? steps.norms[index] : 0,
         .seconds = seconds,
         .loss_scale = parts.scaler ? std::optional(steps.loss_scale) : std::nullopt,
         .sent_bytes = parts.model.replicas ? std::optional(summary_.sent_bytes) : std::nullopt,
         .was_skipped = !steps.was_applied});
  }
}

}  // namespace penstock::train
