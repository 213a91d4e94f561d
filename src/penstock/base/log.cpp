#include "penstock/base/log.h"

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>

#include "penstock/base/quiet.h"

namespace penstock {

namespace {

// The one piece of process-wide state: standard error is process-wide too.
struct Log {
  std::mutex mutex;
  std::atomic<LogLevel> level{LogLevel::Info};
  LiveDisplay display;
};

thread_local bool is_quiet = false;

Log& shared_log() {
  static Log log;
  return log;
}

}  // namespace

void set_log_level(LogLevel level) {
  shared_log().level = level;
}

LogLevel log_level() {
  return shared_log().level;
}

void log_line(LogLevel level, std::string_view text) {
  Log& log = shared_log();
  if (level < log.level || (is_quiet && level < LogLevel::Error)) {
    return;
  }
  const std::lock_guard<std::mutex> lock(log.mutex);
  if (log.display.hide) {
    log.display.hide();
  }
  // One write per line, so that lines of several ranks do not mix.
  const std::string line = std::string(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
  if (log.display.show) {
    log.display.show();
  }
}

QuietScope::QuietScope(bool wants_quiet) : before_(is_quiet) {
  is_quiet = is_quiet || wants_quiet;
}

QuietScope::~QuietScope() {
  is_quiet = before_;
}

void set_live_display(LiveDisplay display) {
  Log& log = shared_log();
  const std::lock_guard<std::mutex> lock(log.mutex);
  log.display = std::move(display);
}

}  // namespace penstock
