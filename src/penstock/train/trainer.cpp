#include "penstock/train/trainer.h"

#include <chrono>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/run_lock.h"
#include "penstock/data/loader.h"
#include "penstock/data/tokenizer.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/loss_scale.h"
#include "penstock/optim/optimizer.h"
#include "penstock/run/executor.h"
#include "penstock/run/generate.h"
#include "penstock/run/plain_step.h"
#include "penstock/train/earlier_run.h"
#include "penstock/train/planning.h"
#include "penstock/train/reporter.h"
#include "penstock/train/setup.h"
#include "penstock/train/step_records.h"

namespace penstock::train {

namespace fs = std::filesystem;

namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail_diverged(const char* what, int64_t step, const config::TrainOptions& train) {
  throw Error(ExitCode::Negative,
              cat("training diverged at step ",
                  step,
                  ": the ",
                  what,
                  " is not finite; nothing is saved from here; try a lower train.lr than ",
                  train.lr,
                  " or a longer train.warmup"));
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

bool is_due(int64_t every, int64_t steps_done) {
  return every > 0 && steps_done % every == 0;
}

}  // namespace

struct Trainer::Parts {
  // The limit comes first and covers everything, measuring included; the plan comes before any
  // weights are loaded, for measuring needs an optimizer that has done nothing yet.
  Parts(const config::Recipe& recipe, bool predicts)
      : device(open_device(recipe)),
        limit(memory::current_account(), recipe.plan.memory_bytes()),
        seed(static_cast<uint64_t>(recipe.train.seed)),
        lock(recipe.run.out),
        split(open_data(recipe)),
        chain(make_chain(recipe.model, device)),
        parameters(chain, compute_type(recipe.train), seed, device),
        optimizer(optim::make_optimizer(recipe.train, parameters)),
        planned(plan_run(recipe, chain, parameters, *optimizer, predicts)),
        executor(planned.result.program, chain, parameters) {
    if (recipe.train.precision == "float16") {
      scaler.emplace(optim::loss_scale_options(recipe.train));
    }
    if (uses_graph(recipe)) {
      executor.use_graph();
    }
  }

  device::Device device;
  memory::LimitScope limit;
  uint64_t seed;
  checkpoint::RunLock lock;
  data::Split split;
  model::Chain chain;
  model::Parameters parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::optional<optim::LossScaler> scaler;  // float16 alone has one
  Planned planned;
  run::Executor executor;
  StepRecords records;
  checkpoint::TrainState state;
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<Reporter> reporter;
};

std::unique_ptr<Trainer::Parts> Trainer::make_parts(const config::Recipe& recipe, bool predicts) {
  try {
    return memory::refuse_over_limit([&] { return std::make_unique<Parts>(recipe, predicts); });
  } catch (const memory::LimitError& error) {
    throw Error(ExitCode::Negative,
                cat("does not fit: ",
                    error.what(),
                    " before the first step; penstock plan says what would fit"));
  }
}

Trainer::Trainer(const config::Recipe& recipe, const fs::path& resume, bool predicts)
    : recipe_(recipe) {
  const fs::path from =
      resume.empty() ? fs::path() : fs::canonical(checkpoint::resolve_checkpoint(resume));
  require_writable_folder(recipe.run.out, "run.out");
  parts_ = make_parts(recipe, predicts);
  Parts& parts = *parts_;
  if (from.empty()) {
    load_start_weights(recipe.model, parts.parameters);
  } else {
    parts.state = checkpoint::load(from, recipe, parts.parameters, *parts.optimizer);
    require_same_data(parts.state.data, parts.split.train.fingerprint());
    log_info("resuming from ", from.string(), " at step ", parts.state.step);
  }
  parts.state.data = parts.split.train.fingerprint();
  if (parts.scaler) {
    if (parts.state.loss_scale) {
      parts.scaler->set_state(*parts.state.loss_scale);
    }
    parts.state.loss_scale = parts.scaler->state();
  }
  if (!from.empty() && fs::equivalent(from.parent_path(), recipe.run.out)) {
    // What came after it is given up; from now on the run stands here.
    checkpoint::point_latest(from);
    move_later_steps_aside(recipe.run.out, parts.state.step);
  } else {
    move_earlier_run_aside(recipe.run.out);
  }
  checkpoint::remove_leftovers(recipe.run.out);
  parts.loader =
      std::make_unique<data::Loader>(parts.split.train,
                                     data::LoaderOptions{.seed = parts.seed,
                                                         .batch = recipe.train.batch,
                                                         .first_sample = parts.state.samples_seen});
  parts.reporter = std::make_unique<Reporter>(recipe, parts.state.step);
  summary_.first_step = parts.state.step;
  summary_.parameters = parts.parameters.count();
}

Trainer::~Trainer() = default;

const Planned& Trainer::plan() const {
  return parts_->planned;
}

const program::Timeline* Trainer::measured_step() const {
  return parts_->records.median();
}

Summary Trainer::run() {
  Parts& parts = *parts_;
  const int64_t steps = recipe_.train.steps;
  const auto& held_out = parts.split.validation;
  log_info(format_count(summary_.parameters),
           " parameters; ",
           format_count(parts.split.train.tokens()),
           " tokens to train on, ",
           held_out ? format_count(held_out->tokens()) : "none",
           " held out; ",
           at::get_num_threads(),
           " threads; writing to ",
           recipe_.run.out);

  const double began = now_seconds();
  while (parts.state.step < steps && !was_interrupted()) {
    train_step();
    const int64_t done = parts.state.step;
    if (done < steps && is_due(recipe_.run.validate_every, done)) {
      validate();
    }
    if (done < steps && is_due(recipe_.run.save_every, done)) {
      save();
    }
  }
  parts.reporter->finish();

  summary_.was_interrupted = parts.state.step < steps;
  if (!summary_.was_interrupted) {
    validate();
  }
  if (!summary_.losses.empty()) {
    save();
  }
  summary_.seconds = now_seconds() - began;
  summary_.tokens_per_second = parts.reporter->tokens_per_second();
  summary_.step_seconds = parts.records.median_seconds();
  summary_.peak_bytes = memory::usage().peak_bytes;
  if (recipe_.run.sample_tokens > 0 && !summary_.was_interrupted) {
    parts.executor.release_graph();
    summary_.sample = write_sample();
  }
  return summary_;
}

// One training step: a batch through the program, whose last instruction is the update.
void Trainer::train_step() {
  Parts& parts = *parts_;
  const double began = now_seconds();
  const int64_t step = parts.state.step;
  const data::Batch batch = parts.loader->next();
  const BatchTensors tensors = as_tensors(batch);
  const run::StepInput input{.inputs = tensors.inputs,
                             .targets = tensors.targets,
                             .first_sample = batch.first_sample,
                             .micro_batches = recipe_.plan.micro_batches,
                             .seed = parts.seed,
                             .step = step,
                             .loss_scale = parts.scaler ? parts.scaler->scale() : 1};
  const optim::UpdateSettings settings{.rate = optim::rate_at(recipe_.train, step),
                                       .clip = recipe_.train.clip,
                                       .loss_scale = input.loss_scale};
  const double loss =
      parts.executor.run(input, [&] { parts.optimizer->update(parts.parameters, settings); });
  const optim::Updated updated = parts.optimizer->updated();
  if (!std::isfinite(loss)) {
    fail_diverged("loss", step + 1, recipe_.train);
  }
  note_update(updated);

  parts.state.step = step + 1;
  parts.state.samples_seen = batch.first_sample + batch.sequences;
  parts.records.add(parts.executor.measured());
  summary_.losses.push_back(loss);
  parts.reporter->show_step(
      step + 1,
      {.loss = loss,
       .lr = settings.rate.lr,
       .gradient_norm = updated.was_applied ? updated.norm : 0,
       .seconds = now_seconds() - began,
       .loss_scale = parts.scaler ? std::optional(settings.loss_scale) : std::nullopt,
       .was_skipped = !updated.was_applied});
}

// A step whose gradients overflowed was not applied: in float16 the loss scale falls, elsewhere the
// run has diverged.
void Trainer::note_update(const optim::Updated& updated) {
  Parts& parts = *parts_;
  const int64_t step = parts.state.step + 1;
  if (!parts.scaler) {
    if (!updated.was_applied) {
      fail_diverged("gradient", step, recipe_.train);
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
    throw Error(ExitCode::Negative,
                cat("training diverged at step ",
                    step,
                    ": the gradients overflow float16 at the least loss scale ",
                    parts.scaler->scale(),
                    ", ",
                    optim::LossScaler::kOverflowsWhenStuck,
                    " steps in a row; nothing is saved from here; try train.precision = "
                    "\"bfloat16\" or a lower train.lr than ",
                    recipe_.train.lr));
  }
  parts.state.loss_scale = parts.scaler->state();
}

void Trainer::validate() {
  Parts& parts = *parts_;
  if (!parts.split.validation) {
    return;
  }
  parts.executor.release_graph();
  const data::Dataset& dataset = *parts.split.validation;
  const int64_t sequences = std::min(recipe_.run.validate_sequences, dataset.samples());
  const int64_t at_once = recipe_.train.batch / recipe_.plan.micro_batches;
  run::LossSum total;
  for (int64_t first = 0; first < sequences; first += at_once) {
    const int64_t count = std::min(at_once, sequences - first);
    const data::Batch batch = data::read_in_order(dataset, first, count);
    const BatchTensors tensors = as_tensors(batch);
    const run::LossSum part =
        run::evaluate(parts.chain, parts.parameters, tensors.inputs, tensors.targets);
    total.sum += part.sum;
    total.count += part.count;
  }
  summary_.validation_loss = total.sum / static_cast<double>(total.count);
  if (!std::isfinite(*summary_.validation_loss)) {
    fail_diverged("validation loss", parts.state.step, recipe_.train);
  }
  parts.reporter->show_validation(parts.state.step, *summary_.validation_loss, sequences);
}

void Trainer::save() {
  const Parts& parts = *parts_;
  if (!std::isfinite(optim::flat_norm(parts.parameters.flat_weights()))) {
    fail_diverged("weights' norm", parts.state.step, recipe_.train);
  }
  try {
    summary_.checkpoint =
        checkpoint::save(recipe_, parts.parameters, *parts.optimizer, parts.state);
  } catch (const FileError& error) {
    const std::string last = checkpoint::list_steps(recipe_.run.out).empty()
                                 ? "there is no earlier checkpoint"
                                 : cat("the last checkpoint is ",
                                       checkpoint::resolve_checkpoint(recipe_.run.out).string());
    throw FileError(cat("cannot save step ",
                        parts.state.step,
                        ": ",
                        error.what(),
                        "; ",
                        last,
                        "; make room or choose another run.out, then --resume"));
  }
  log_info("saved ", summary_.checkpoint.string());
}

std::string Trainer::write_sample() const {
  if (recipe_.data.tokenizer != "bytes") {
    log_warning(
        "run.sample_tokens is set, but only data.tokenizer = \"bytes\" gives text; no sample");
    return "";
  }
  const std::vector<int64_t> made = run::generate(parts_->chain,
                                                  parts_->parameters,
                                                  data::encode(recipe_.run.sample_prompt),
                                                  {.tokens = recipe_.run.sample_tokens,
                                                   .context = recipe_.model.context,
                                                   .seed = parts_->seed,
                                                   .stop_token = data::kEndOfDocument},
                                                  [](int64_t) { return !was_interrupted(); });
  return recipe_.run.sample_prompt + data::decode(made);
}

}  // namespace penstock::train
