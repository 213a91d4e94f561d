// The one display of a long job. On a terminal it is a single line on standard error, redrawn in
// place, with log lines appearing above it; elsewhere it is a plain log line now and then.
//
// At most one Progress is alive at a time. update() and finish() belong to one thread; log lines
// may come from any.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "penstock/report/progress_line.h"
#include "penstock/report/step_rate.h"

namespace penstock::report {

struct ProgressOptions {
  std::string title;
  int64_t total = 0;  // steps in the whole job; 0: not known
  int64_t start = 0;  // steps done before this process began; they say nothing about the speed
  int64_t plain_every = 10;  // steps between plain lines; the first and the last are always printed
  std::optional<bool> is_terminal = std::nullopt;  // default: whether standard error is one
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done, const std::vector<Field>& fields);

  // Takes the line off the terminal, or prints the last plain line if it is still owed. Later calls
  // do nothing.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  void update_live(Clock::time_point now);
  void update_plain();
  void print_plain();
  void draw();
  void erase();

  const ProgressOptions options_;
  const bool is_live_;
  const Clock::time_point began_;
  StepRate rate_;
  bool is_finished_ = false;
  std::optional<int64_t> printed_;  // step of the last plain line

  // Lock order: the log's mutex before this one, so nothing is logged while it is held.
  std::mutex mutex_;
  ProgressState state_;
  bool is_started_ = false;  // state_ has something to show
  bool is_hidden_ = false;   // a log line is being written, or the job is over
  bool is_drawn_ = false;
  Clock::time_point drawn_at_;
};

}  // namespace penstock::report
