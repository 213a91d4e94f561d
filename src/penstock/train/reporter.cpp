#include "penstock/train/reporter.h"

#include <cmath>
#include <cstdio>

#include "penstock/base/log.h"
#include "penstock/base/process.h"
#include "penstock/base/units.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/report/metrics.h"
#include "penstock/report/progress.h"
#include "penstock/report/run_status.h"

namespace penstock::train {

namespace {

std::string print(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace

Reporter::Reporter(const config::Recipe& recipe, int64_t first_step)
    : recipe_(recipe), first_step_(first_step) {
  const std::string& log = recipe.run.log;
  metrics_ = std::make_unique<report::Metrics>(
      report::MetricsOptions{.folder = recipe.run.out,
                             .jsonl = log == "all" || log == "jsonl",
                             .tensorboard = log == "all" || log == "tensorboard",
                             .resume_step = first_step});
  progress_ = std::make_unique<report::Progress>(
      report::ProgressOptions{.title = "train",
                              .total = recipe.train.steps,
                              .start = first_step,
                              .plain_every = recipe.run.log_every});
  status_file_ = std::make_unique<report::StatusFile>(recipe.run.out);
  status_ = std::make_unique<report::RunStatus>(
      report::RunStatus{.step = first_step, .steps = recipe.train.steps});
  show_status();
}

Reporter::~Reporter() = default;

void Reporter::show_step(int64_t steps_done, const StepReport& step) {
  // What a sample of a user's own dataset consists of nobody knows.
  const bool is_own = recipe_.model.family == config::kOwnFamily;
  const double step_tokens =
      static_cast<double>(recipe_.train.batch * (is_own ? 1 : recipe_.model.context));
  const bool is_first = steps_done == first_step_ + 1;
  if (is_first) {
    tokens_per_second_ = step_tokens / step.seconds;
  } else {
    timed_seconds_ += step.seconds;
    ++timed_steps_;
    tokens_per_second_ = step_tokens * static_cast<double>(timed_steps_) / timed_seconds_;
  }
  const int64_t peak = memory::usage().peak_bytes;
  std::vector<std::pair<std::string, double>> values{{"loss", step.loss}, {"lr", step.lr}};
  if (!step.was_skipped) {
    values.emplace_back("gradient_norm", step.gradient_norm);
  }
  values.emplace_back(is_own ? "samples_per_second" : "tokens_per_second",
                      step_tokens / step.seconds);
  values.emplace_back("step_seconds", step.seconds);
  values.emplace_back("peak_bytes", static_cast<double>(peak));
  if (step.loss_scale) {
    values.emplace_back("loss_scale", *step.loss_scale);
  }
  if (step.sent_bytes) {
    values.emplace_back("sent_bytes", static_cast<double>(*step.sent_bytes));
  }
  metrics_->record(steps_done, values);
  status_->step = steps_done;
  status_->loss = step.loss;
  show_status();
  progress_->update(
      steps_done,
      {{"loss", print("%.4f", step.loss)},
       {"norm", step.was_skipped ? "overflow" : print("%.2f", step.gradient_norm)},
       {"lr", print("%.2e", step.lr)},
       {is_own ? "samples/s" : "tok/s", format_count(std::llround(tokens_per_second_))},
       {"peak", format_bytes(peak)}});
}

void Reporter::show_validation(int64_t steps_done, double loss, int64_t sequences) {
  // A finished run that is resumed has its last validation on file.
  if (steps_done > first_step_) {
    metrics_->record(steps_done, {{"validation_loss", loss}});
  }
  status_->validation_loss = loss;
  log_info("validation loss ",
           print("%.4f", loss),
           " after step ",
           steps_done,
           " (",
           sequences,
           recipe_.model.family == config::kOwnFamily ? " samples)" : " sequences)");
}

void Reporter::note_checkpoint(const std::filesystem::path& checkpoint) {
  status_->checkpoint = checkpoint.string();
}

void Reporter::finish() {
  progress_->finish();
}

void Reporter::show_end(const std::string& state, const std::string& reason) {
  status_->state = state;
  status_->reason = reason;
  show_status();
}

void Reporter::show_status() {
  status_->peak_bytes = memory::usage().peak_bytes;
  status_->peak_resident_bytes = peak_resident_bytes();
  status_file_->show(*status_);
}

}  // namespace penstock::train
