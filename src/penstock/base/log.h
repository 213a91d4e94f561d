// Lines for people, on standard error. Standard output belongs to results.
//
// A live display (the progress bar) registers itself, so that a log line appears above it instead
// of through it.
#pragma once

#include <functional>
#include <string_view>

#include "penstock/base/text.h"

namespace penstock {

enum class LogLevel { Info, Warning, Error };

void set_log_level(LogLevel level);
LogLevel log_level();

void log_line(LogLevel level, std::string_view text);

template <typename... Parts>
void log_info(const Parts&... parts) {
  log_line(LogLevel::Info, cat(parts...));
}
template <typename... Parts>
void log_warning(const Parts&... parts) {
  log_line(LogLevel::Warning, cat("warning: ", parts...));
}

// What to call before and after a line is written while a live display is on the terminal. Empty
// functions: no display.
struct LiveDisplay {
  std::function<void()> hide;
  std::function<void()> show;
};
void set_live_display(LiveDisplay display);

}  // namespace penstock
