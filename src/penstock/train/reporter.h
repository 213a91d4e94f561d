// What a run shows while it goes: the progress display, the metric files, and the speed so far.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "penstock/config/recipe.h"

namespace penstock::report {
class Metrics;
class Progress;
class StatusFile;
struct RunStatus;
}  // namespace penstock::report

namespace penstock::train {

struct StepReport {
  double loss = 0;
  double lr = 0;
  double gradient_norm = 0;
  double seconds = 0;
  std::optional<double> loss_scale;   // float16
  std::optional<int64_t> sent_bytes;  // to replicas
  bool was_skipped = false;           // the gradients overflowed: there is no norm
};

class Reporter {
 public:
  // `first_step` is where this run begins: metrics of later steps, left by an earlier try, go.
  Reporter(const config::Recipe& recipe, int64_t first_step);
  ~Reporter();

  void show_step(int64_t steps_done, const StepReport& step);
  void show_validation(int64_t steps_done, double loss, int64_t sequences);
  void note_checkpoint(const std::filesystem::path& checkpoint);
  void finish();  // takes the progress display away
  // The last words of status.json: one of report/run_status.h, and why.
  void show_end(const std::string& state, const std::string& reason);

  // Over all steps but the first, which warms up.
  double tokens_per_second() const { return tokens_per_second_; }

 private:
  void show_status();

  config::Recipe recipe_;
  int64_t first_step_;
  std::unique_ptr<report::Metrics> metrics_;
  std::unique_ptr<report::Progress> progress_;
  std::unique_ptr<report::StatusFile> status_file_;
  std::unique_ptr<report::RunStatus> status_;
  double timed_seconds_ = 0;
  int64_t timed_steps_ = 0;
  double tokens_per_second_ = 0;
};

}  // namespace penstock::train
