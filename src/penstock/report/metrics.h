// The numbers of a run, step by step: metrics.jsonl for programs, an event file for TensorBoard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/report/event_file.h"
#include "penstock/report/log_file.h"

namespace penstock::report {

struct MetricsOptions {
  std::filesystem::path folder;  // made when it is not there
  bool jsonl = true;
  bool tensorboard = false;
  int64_t resume_step = 0;  // last step to keep of an earlier run; 0: a new run, which keeps none
};

class Metrics {
 public:
  // Takes what an earlier run recorded after `resume_step` out of metrics.jsonl, as well as lines
  // that were cut short when that run ended. Throws FileError where a file cannot be read or
  // written.
  explicit Metrics(const MetricsOptions& options);

  // One line {"step": 12, "loss": 2.31}, with null for NaN and infinities, and one scalar per
  // value. Both are with the system when this returns, or as soon as they can be written (LogFile).
  void record(int64_t step, const std::vector<std::pair<std::string, double>>& values);

 private:
  std::filesystem::path jsonl_path_;
  std::optional<LogFile> jsonl_;
  std::optional<EventFile> events_;
};

}  // namespace penstock::report
