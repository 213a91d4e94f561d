#include "penstock/report/progress.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/log.h"

namespace penstock::report {

namespace {

constexpr std::chrono::milliseconds kRedrawEvery{100};
constexpr size_t kUsualWidth = 80;

bool is_stderr_terminal() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && std::string_view(kind == nullptr ? "" : kind) != "dumb";
}

size_t terminal_width() {
  winsize size = {};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : kUsualWidth;
}

// One write, so that the line never shows half drawn.
void write_to_terminal(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)),
      // Whoever asked for fewer lines than Info asked for no progress either.
      is_live_(options_.is_terminal.value_or(is_stderr_terminal()) &&
               log_level() <= LogLevel::Info),
      began_(Clock::now()),
      rate_(options_.start, 0) {
  PENSTOCK_CHECK(options_.plain_every > 0, "plain_every is ", options_.plain_every);
  state_.title = options_.title;
  state_.total = options_.total;
  if (is_live_) {
    const auto hide = [this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      erase();
      is_hidden_ = true;
    };
    const auto show = [this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_hidden_ = is_finished_;
      draw();
    };
    set_live_display({hide, show});
  }
}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {
    // Progress is only a courtesy: what failed here must not end the job.
  }
}

void Progress::update(int64_t done, const std::vector<Field>& fields) {
  if (is_finished_) {
    return;
  }
  const Clock::time_point now = Clock::now();
  rate_.observe(done, std::chrono::duration<double>(now - began_).count());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    state_.done = done;
    state_.fields = fields;
    state_.seconds_left.reset();
    const std::optional<double> step_seconds = rate_.seconds_per_step();
    if (step_seconds && done < options_.total) {
      state_.seconds_left = *step_seconds * static_cast<double>(options_.total - done);
    }
    is_started_ = true;
  }
  if (is_live_) {
    update_live(now);
  } else {
    update_plain();
  }
}

void Progress::finish() {
  if (is_finished_) {
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_finished_ = true;
    erase();
    is_hidden_ = true;
  }
  if (is_live_) {
    set_live_display({});
  } else if (is_started_ && printed_ != state_.done) {
    print_plain();
  }
}

void Progress::update_live(Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_last = options_.total > 0 && state_.done >= options_.total;
  if (!is_drawn_ || is_last || now - drawn_at_ >= kRedrawEvery) {
    draw();
  }
}

void Progress::update_plain() {
  if (printed_ == state_.done) {
    return;
  }
  const bool is_last = options_.total > 0 && state_.done >= options_.total;
  // Steps may be skipped, so what counts is that a multiple was passed.
  const auto passed = [this](int64_t done) { return done / options_.plain_every; };
  if (!printed_ || is_last || passed(state_.done) != passed(*printed_)) {
    print_plain();
  }
}

void Progress::print_plain() {
  log_info(plain_progress_line(state_));
  printed_ = state_.done;
}

void Progress::draw() {
  if (!is_started_ || is_hidden_) {
    return;
  }
  // The last column stays free: many terminals wrap when it is written.
  const size_t width = std::max<size_t>(terminal_width(), 2) - 1;
  write_to_terminal("\r" + live_progress_line(state_, width) + "\x1b[K");
  is_drawn_ = true;
  drawn_at_ = Clock::now();
}

void Progress::erase() {
  if (is_drawn_) {
    write_to_terminal("\r\x1b[K");
    is_drawn_ = false;
  }
}

}  // namespace penstock::report
