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
      : limit(memory::current_account(), recipe.plan.memory_bytes()),
        seed(static_cast<uint64_t>(recipe.train.seed)),
        lock(recipe.run.out),
        split(open_data(recipe)),
        chain(make_chain(recipe.model)),
        parameters(chain, compute_type(recipe.train), seed),
        optimizer(optim::make_optimizer(recipe.train, parameters)),
        planned(plan_run(recipe, chain, parameters, *optimizer, predicts)),
        executor(planned.result.program, chain, parameters) {}

  memory::LimitScope limit;
  uint64_t seed;
  checkpoint::RunLock lock;
  data::Split split;
  model::Chain chain;
  model::Parameters parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
  Planned planned;
  run::Executor executor;
  StepRecords records;
  checkpoint::TrainState state;
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<Reporter> reporter;
};

std::unique_ptr<Trainer::Parts> Trainer::make_parts(const config::Recipe& recipe, bool predicts) {
  try {
    return std::make_unique<Parts>(recipe, predicts);
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
  summary_.peak_bytes = memory::cpu_usage().peak_bytes;
  if (recipe_.run.sample_tokens > 0 && !summary_.was_interrupted) {
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
                             .step = step};
  double norm = 0;
  const optim::Rate rate = optim::rate_at(recipe_.train, step);
  // Norm, clip, update.
  const auto update = [&](double loss) {
    norm = optim::gradient_norm(parts.parameters);
    if (!std::isfinite(loss) || !std::isfinite(norm)) {
      fail_diverged(std::isfinite(loss) ? "gradient" : "loss", step + 1, recipe_.train);
    }
    parts.optimizer->step(parts.parameters, rate, optim::clip_scale(norm, recipe_.train.clip));
    parts.parameters.refresh_compute();
  };
  const double loss = parts.executor.run(input, update);

  parts.state.step = step + 1;
  parts.state.samples_seen = batch.first_sample + batch.sequences;
  parts.records.add(parts.executor.measured());
  summary_.losses.push_back(loss);
  parts.reporter->show_step(step + 1, {loss, rate.lr, norm, now_seconds() - began});
}

void Trainer::validate() {
  const Parts& parts = *parts_;
  if (!parts.split.validation) {
    return;
  }
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
