// status.json in a run's folder: how the run is, for scripts, schedulers and `penstock jobs`. Rank 0 writes it
// at most once a second, whole or not at all; a run can do without it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace penstock::report {

inline constexpr const char* kStatusName = "status.json";

// The words of `state`.
inline constexpr const char* kRunning = "running";
inline constexpr const char* kFinished = "finished";        // all steps are done
inline constexpr const char* kInterrupted = "interrupted";  // saved, to go on with --resume auto
inline constexpr const char* kFailed = "failed";

struct RunStatus {
  std::string state = kRunning;
  std::string reason;  // why it is no longer running: "SIGTERM", "run.hours", an error's line
  int64_t step = 0;    // done
  int64_t steps = 0;   // wanted
  std::optional<double> loss, validation_loss;
  int64_t peak_bytes = 0;           // of tensors, on rank 0's device
  int64_t peak_resident_bytes = 0;  // RAM of rank 0's process
  std::string checkpoint;           // the newest; empty: none
};

std::string status_json(const RunStatus& status);

class StatusFile {
 public:
  explicit StatusFile(std::filesystem::path run_folder);

  // Left out where the last was less than a second ago, but for one that is no longer running.
  void show(const RunStatus& status);

 private:
  std::filesystem::path path_;
  double last_s_ = -1;
  bool is_failing_ = false;
};

}  // namespace penstock::report
