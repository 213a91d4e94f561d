#include "penstock/report/run_status.h"

#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/log.h"
#include "penstock/base/process.h"

namespace penstock::report {

namespace {

nlohmann::ordered_json number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nullptr;
}

}  // namespace

std::string status_json(const RunStatus& status) {
  const ProcessId process = this_process();
  const nlohmann::ordered_json json{{"state", status.state},
                                    {"reason", status.reason.substr(0, status.reason.find('\n'))},
                                    {"step", status.step},
                                    {"steps", status.steps},
                                    {"loss", number_or_null(status.loss)},
                                    {"validation_loss", number_or_null(status.validation_loss)},
                                    {"peak_bytes", status.peak_bytes},
                                    {"peak_rss_bytes", status.peak_resident_bytes},
                                    {"checkpoint", status.checkpoint},
                                    {"host", process.host},
                                    {"pid", process.number},
                                    {"job", job_id()},
                                    {"updated", utc_now()}};
  // An error's line may hold any bytes.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

StatusFile::StatusFile(std::filesystem::path run_folder)
    : path_(std::move(run_folder) / kStatusName) {}

void StatusFile::show(const RunStatus& status) {
  constexpr double kPauseSeconds = 1;
  const double now = now_seconds();
  if (status.state == kRunning && last_s_ >= 0 && now - last_s_ < kPauseSeconds) {
    return;
  }
  last_s_ = now;
  try {
    refresh_text_file(path_, status_json(status));
    is_failing_ = false;
  } catch (const FileError& error) {
    if (!std::exchange(is_failing_, true)) {
      log_warning(error.what(), "; the run goes on without it");
    }
  }
}

}  // namespace penstock::report
