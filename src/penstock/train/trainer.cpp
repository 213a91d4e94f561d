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
#include "penstock/checkpoint/model_config.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/weights.h"
#include "penstock/data/loader.h"
#include "penstock/data/tokenizer.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/report/metrics.h"
#include "penstock/report/progress.h"
#include "penstock/run/generate.h"
#include "penstock/run/plain_step.h"
#include "penstock/train/earlier_run.h"
#include "penstock/train/setup.h"

namespace penstock::train {

namespace fs = std::filesystem;

namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string fixed(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace

struct Trainer::Parts {
  explicit Parts(const config::Recipe& recipe)
      : split(open_data(recipe)),
        chain(make_chain(recipe.model)),
        parameters(chain, compute_type(recipe.train), static_cast<uint64_t>(recipe.train.seed)),
        optimizer(optim::make_optimizer(recipe.train, parameters)) {}

  data::Split split;
  model::Chain chain;
  model::Parameters parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
  checkpoint::TrainState state;
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<report::Metrics> metrics;
  std::unique_ptr<report::Progress> progress;
  // Of the step at hand.
  optim::Rate rate;
  double gradient_norm = 0;
  double timed_seconds = 0;
  int64_t timed_steps = 0;
};

Trainer::Trainer(const config::Recipe& recipe, const fs::path& resume) : recipe_(recipe) {
  require_writable_folder(recipe.run.out, "run.out");
  const fs::path from = resume.empty() ? fs::path() : checkpoint::resolve_checkpoint(resume);
  parts_ = std::make_unique<Parts>(recipe);
  if (!from.empty()) {
    parts_->state = checkpoint::load(from, recipe, parts_->parameters, *parts_->optimizer);
    log_info("resuming from ", from.string(), " at step ", parts_->state.step);
  } else if (!recipe.model.weights.empty()) {
    checkpoint::require_same_model(recipe.model.weights, recipe.model);
    checkpoint::import_weights(recipe.model.weights, parts_->parameters);
    log_info("starting from the weights of ", recipe.model.weights);
  }
  const bool continues_here = !from.empty() && fs::equivalent(from.parent_path(), recipe.run.out);
  if (!continues_here) {
    move_earlier_run_aside(recipe.run.out);
  }
  checkpoint::remove_leftovers(recipe.run.out);
  parts_->loader = std::make_unique<data::Loader>(
      parts_->split.train,
      data::LoaderOptions{.seed = static_cast<uint64_t>(recipe.train.seed),
                          .batch = recipe.train.batch,
                          .first_sample = parts_->state.samples_seen});
  parts_->metrics = std::make_unique<report::Metrics>(report::MetricsOptions{
      .folder = recipe.run.out,
      .jsonl = recipe.run.log == "all" || recipe.run.log == "jsonl",
      .tensorboard = recipe.run.log == "all" || recipe.run.log == "tensorboard",
      .resume_step = parts_->state.step});
  summary_.first_step = parts_->state.step;
  summary_.parameters = parts_->parameters.count();
}

Trainer::~Trainer() = default;

Summary Trainer::run() {
  const int64_t steps = recipe_.train.steps;
  const int64_t first = parts_->state.step;
  const auto is_due = [](int64_t every, int64_t done) { return every > 0 && done % every == 0; };
  log_info(format_count(summary_.parameters),
           " parameters; ",
           format_count(parts_->split.train.tokens()),
           " tokens to train on, ",
           parts_->split.validation ? format_count(parts_->split.validation->tokens()) : "none",
           " held out; ",
           at::get_num_threads(),
           " threads; writing to ",
           recipe_.run.out);
  parts_->progress = std::make_unique<report::Progress>(report::ProgressOptions{
      .title = "train", .total = steps, .start = first, .plain_every = recipe_.run.log_every});
  const double began = now_seconds();

  for (int64_t step = first; step < steps && !was_interrupted(); ++step) {
    const double step_began = now_seconds();
    const double loss = train_step(step);
    const double seconds = now_seconds() - step_began;
    if (!std::isfinite(loss)) {
      throw Error(ExitCode::Negative,
                  cat("the loss is not finite at step ",
                      step,
                      "; nothing is saved from here; try a lower train.lr than ",
                      recipe_.train.lr,
                      " or a longer train.warmup"));
    }
    summary_.losses.push_back(loss);
    report(step, loss, seconds);
    const int64_t done = step + 1;
    const bool is_last = done == steps;
    if (is_due(recipe_.run.validate_every, done) && !is_last) {
      validate(done);
    }
    if (is_due(recipe_.run.save_every, done) && !is_last) {
      save(done);
    }
  }

  summary_.was_interrupted = was_interrupted() && parts_->state.step < steps;
  parts_->progress->finish();
  if (!summary_.was_interrupted) {
    validate(parts_->state.step);
  }
  if (!summary_.losses.empty()) {
    save(parts_->state.step);
  }
  summary_.seconds = now_seconds() - began;
  summary_.peak_bytes = memory::cpu_usage().peak_bytes;
  if (recipe_.run.sample_tokens > 0 && !summary_.was_interrupted) {
    summary_.sample = write_sample();
  }
  return summary_;
}

// One optimizer step: batch, gradients, norm, clip, update.
double Trainer::train_step(int64_t step) {
  const data::Batch batch = parts_->loader->next();
  const BatchTensors tensors = as_tensors(batch);
  model::Parameters& parameters = parts_->parameters;

  parameters.zero_gradients();
  const double loss = run::accumulate_gradients(parts_->chain,
                                                parameters,
                                                {.inputs = tensors.inputs,
                                                 .targets = tensors.targets,
                                                 .first_sample = batch.first_sample,
                                                 .micro_batches = recipe_.plan.micro_batches,
                                                 .seed = static_cast<uint64_t>(recipe_.train.seed),
                                                 .step = step});

  parts_->gradient_norm = optim::gradient_norm(parameters);
  parts_->rate = optim::rate_at(recipe_.train, step);
  parts_->optimizer->step(
      parameters, parts_->rate, optim::clip_scale(parts_->gradient_norm, recipe_.train.clip));
  parameters.refresh_compute();
  parts_->state = {step + 1, batch.first_sample + batch.sequences};
  return loss;
}

void Trainer::validate(int64_t step) {
  if (!parts_->split.validation) {
    return;
  }
  const data::Dataset& dataset = *parts_->split.validation;
  const int64_t sequences = std::min(recipe_.run.validate_sequences, dataset.samples());
  const int64_t at_once = std::max<int64_t>(1, recipe_.train.batch / recipe_.plan.micro_batches);
  run::LossSum total;
  for (int64_t first = 0; first < sequences; first += at_once) {
    const data::Batch batch =
        data::read_in_order(dataset, first, std::min(at_once, sequences - first));
    const BatchTensors tensors = as_tensors(batch);
    const run::LossSum part =
        run::evaluate(parts_->chain, parts_->parameters, tensors.inputs, tensors.targets);
    total.sum += part.sum;
    total.count += part.count;
  }
  summary_.validation_loss = total.sum / static_cast<double>(total.count);
  parts_->metrics->record(step, {{"validation_loss", *summary_.validation_loss}});
  log_info("validation loss ",
           fixed("%.4f", *summary_.validation_loss),
           " after step ",
           step,
           " (",
           sequences,
           " sequences)");
}

void Trainer::save(int64_t step) {
  try {
    summary_.checkpoint =
        checkpoint::save(recipe_, parts_->parameters, *parts_->optimizer, parts_->state);
  } catch (const FileError& error) {
    const std::vector<int64_t> steps = checkpoint::list_steps(recipe_.run.out);
    throw FileError(cat(
        "cannot save step ",
        step,
        ": ",
        error.what(),
        "; ",
        steps.empty() ? std::string("there is no earlier checkpoint")
                      : cat("the last checkpoint is ",
                            (fs::path(recipe_.run.out) / checkpoint::step_folder_name(steps.back()))
                                .string()),
        "; make room or choose another run.out, then --resume"));
  }
  log_info("saved ", summary_.checkpoint.string());
}

void Trainer::report(int64_t step, double loss, double seconds) {
  const bool is_warm_up = step == summary_.first_step && step + 1 < recipe_.train.steps;
  if (!is_warm_up) {
    parts_->timed_seconds += seconds;
    ++parts_->timed_steps;
  }
  const double step_tokens = static_cast<double>(recipe_.train.batch * recipe_.model.context);
  summary_.tokens_per_second =
      parts_->timed_steps > 0
          ? step_tokens * static_cast<double>(parts_->timed_steps) / parts_->timed_seconds
          : step_tokens / seconds;
  const int64_t peak = memory::cpu_usage().peak_bytes;
  parts_->metrics->record(step + 1,
                          {{"loss", loss},
                           {"lr", parts_->rate.lr},
                           {"gradient_norm", parts_->gradient_norm},
                           {"tokens_per_second", step_tokens / seconds},
                           {"step_seconds", seconds},
                           {"peak_bytes", static_cast<double>(peak)}});
  parts_->progress->update(step + 1,
                           {{"loss", fixed("%.4f", loss)},
                            {"norm", fixed("%.2f", parts_->gradient_norm)},
                            {"lr", fixed("%.2e", parts_->rate.lr)},
                            {"tok/s", format_count(std::llround(summary_.tokens_per_second))},
                            {"peak", format_bytes(peak)}});
}

std::string Trainer::write_sample() const {
  if (recipe_.data.tokenizer != "bytes") {
    log_warning(
        "run.sample_tokens is set, but only data.tokenizer = \"bytes\" can be written as text; no "
        "sample");
    return "";
  }
  const std::vector<int64_t> made =
      run::generate(parts_->chain,
                    parts_->parameters,
                    data::encode(recipe_.run.sample_prompt),
                    {.tokens = recipe_.run.sample_tokens,
                     .context = recipe_.model.context,
                     .seed = static_cast<uint64_t>(recipe_.train.seed),
                     .stop_token = data::kEndOfDocument});
  return recipe_.run.sample_prompt + data::decode(made);
}

}  // namespace penstock::train
