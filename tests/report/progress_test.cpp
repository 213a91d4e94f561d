#include "penstock/report/progress.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/report/text_width.h"

namespace penstock::report {
namespace {

constexpr const char* kClear = "\r\x1b[K";

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

template <typename Body>
std::string stderr_of(Body body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

ProgressOptions options_for(bool is_terminal, int64_t total, int64_t start = 0) {
  return {.title = "train", .total = total, .start = start, .is_terminal = is_terminal};
}

TEST(Progress, PlainLinesComeFirstEveryTenAndLast) {
  const std::string text = stderr_of([] {
    Progress progress(options_for(false, 25));
    for (int step = 1; step <= 25; ++step) {
      progress.update(step, {{"loss", std::to_string(step)}});
    }
  });
  EXPECT_EQ(count_of(text, "\n"), 4u) << text;
  EXPECT_EQ(text.rfind("train 1/25  loss 1  ", 0), 0u) << text;
  EXPECT_NE(text.find(" left\ntrain 10/25  loss 10  "), std::string::npos) << text;
  EXPECT_NE(text.find(" left\ntrain 20/25  loss 20  "), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with(" left\ntrain 25/25  loss 25\n")) << text;
  EXPECT_EQ(count_of(text, "\x1b"), 0u);
}

TEST(Progress, PlainPrintsTheLastStepOfAnInterruptedJobOnce) {
  const std::string text = stderr_of([] {
    Progress progress(options_for(false, 100));
    for (int step = 1; step <= 13; ++step) {
      progress.update(step, {});
    }
    progress.finish();
    progress.finish();
    progress.update(14, {});
  });
  EXPECT_EQ(count_of(text, "\n"), 3u) << text;
  EXPECT_NE(text.find("train 13/100"), std::string::npos) << text;
}

TEST(Progress, PlainNoticesMultiplesThatWereSkipped) {
  const std::string text = stderr_of([] {
    Progress progress(options_for(false, 0));
    for (const int step : {4, 8, 12, 16, 24, 24, 28}) {
      progress.update(step, {});
    }
  });
  EXPECT_EQ(text, "train 4\ntrain 12\ntrain 24\ntrain 28\n");
}

TEST(Progress, AJobThatNeverBeganShowsNothing) {
  EXPECT_EQ(stderr_of([] { Progress progress(options_for(false, 10)); }), "");
  EXPECT_EQ(stderr_of([] { Progress progress(options_for(true, 10)); }), "");
}

TEST(Progress, TimeLeftIgnoresStepsBeforeTheStart) {
  const std::string text = stderr_of([] {
    Progress progress(options_for(false, 1'000'100, 1'000'000));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    progress.update(1'000'001, {});
  });
  // 99 steps of at least 30 ms; counting the earlier steps would make it microseconds.
  EXPECT_NE(text.find(" left"), std::string::npos) << text;
  EXPECT_EQ(text.find("<1 s left"), std::string::npos) << text;
}

TEST(Progress, LiveDrawsOneLineAndClearsIt) {
  const std::string text = stderr_of([] {
    Progress progress(options_for(true, 10));
    progress.update(1, {{"loss", "2.0"}});
  });
  EXPECT_EQ(text.rfind("\rtrain [", 0), 0u) << text;
  EXPECT_NE(text.find(" 1/10  loss 2.0  "), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with(kClear)) << text;
  EXPECT_EQ(count_of(text, "\n"), 0u);
}

TEST(Progress, LiveRedrawsSeldomButAlwaysAtTheEnd) {
  const std::string text = stderr_of([] {
    Progress progress(options_for(true, 1000));
    for (int step = 1; step <= 1000; ++step) {
      progress.update(step, {});
    }
  });
  EXPECT_LT(count_of(text, "train"), 20u);
  EXPECT_NE(text.find("1000/1000"), std::string::npos);
}

TEST(Progress, LogLinesAppearAboveTheLiveLine) {
  const std::string text = stderr_of([] {
    Progress progress(options_for(true, 10));
    progress.update(1, {});
    progress.update(2, {});  // too soon to be drawn by itself
    log_info("saved");
    progress.finish();
    log_info("done");
  });
  EXPECT_NE(text.find(std::string(kClear) + "saved\n\rtrain ["), std::string::npos) << text;
  EXPECT_NE(text.find(" 2/10"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with(std::string(kClear) + "done\n")) << text;
}

TEST(Progress, LogLinesOfOtherThreadsStayWhole) {
  const std::string text = stderr_of([] {
    Progress progress(options_for(true, 100'000));
    progress.update(1, {});
    std::thread other([] {
      for (int i = 0; i < 500; ++i) {
        log_info("line");
      }
    });
    for (int step = 2; step <= 20'000; ++step) {
      progress.update(step, {});
    }
    other.join();
  });
  EXPECT_EQ(count_of(text, "\x1b[Kline\n\r"), 500u);
}

TEST(Progress, QuietLogsSilenceTheLiveLineToo) {
  const LogLevel before = log_level();
  set_log_level(LogLevel::Warning);
  const std::string text = stderr_of([] {
    Progress progress(options_for(true, 10));
    progress.update(10, {});
  });
  set_log_level(before);
  EXPECT_EQ(text, "");
}

TEST(Progress, PlainEveryHasToBePositive) {
  EXPECT_THROW(Progress({.title = "train", .plain_every = 0}), InternalError);
}

// Standard error on a pseudo-terminal of a given width and kind, for as long as it lives.
class FakeTerminal {
 public:
  FakeTerminal(unsigned short columns, const char* kind)
      : main_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    const char* kind_before = ::getenv("TERM");
    kind_before_ = kind_before == nullptr ? "" : kind_before;
    ::setenv("TERM", kind, 1);
    if (main_ < 0 || ::grantpt(main_) != 0 || ::unlockpt(main_) != 0) {
      return;
    }
    const int other = ::open(::ptsname(main_), O_RDWR | O_NOCTTY);
    if (other < 0) {
      return;
    }
    winsize size = {};
    size.ws_col = columns;
    size.ws_row = 24;
    ::ioctl(other, TIOCSWINSZ, &size);
    saved_ = ::dup(STDERR_FILENO);
    ::dup2(other, STDERR_FILENO);
    ::close(other);
  }
  ~FakeTerminal() {
    if (is_open()) {
      ::dup2(saved_, STDERR_FILENO);
      ::close(saved_);
    }
    ::close(main_);
    ::setenv("TERM", kind_before_.c_str(), 1);
  }
  FakeTerminal(const FakeTerminal&) = delete;
  FakeTerminal& operator=(const FakeTerminal&) = delete;

  bool is_open() const { return saved_ >= 0; }

  std::string read_all() {
    std::string text;
    pollfd ready = {main_, POLLIN, 0};
    while (::poll(&ready, 1, 100) == 1) {
      char buffer[4096];
      const ssize_t count = ::read(main_, buffer, sizeof(buffer));
      if (count <= 0) {
        break;
      }
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }

 private:
  int main_;
  int saved_ = -1;
  std::string kind_before_;
};

TEST(Progress, FindsTheTerminalAndFitsItsWidth) {
  std::string text;
  {
    FakeTerminal terminal(40, "xterm");
    if (!terminal.is_open()) {
      GTEST_SKIP() << "no pseudo-terminals here";
    }
    Progress progress({.title = "train", .total = 100});
    progress.update(7, {{"loss", "2.3100"}, {"lr", "3.0e-04"}, {"memory", "412.0 MiB"}});
    text = terminal.read_all();
    progress.finish();
  }
  EXPECT_TRUE(text.ends_with("\x1b[K")) << text;
  const std::string line = text.substr(1, text.size() - 4);
  EXPECT_LE(text_width(line), 39u) << line;
  EXPECT_NE(line.find("7/100  loss 2.3100"), std::string::npos) << line;
}

TEST(Progress, ADumbTerminalGetsPlainLines) {
  std::string text;
  {
    FakeTerminal terminal(40, "dumb");
    if (!terminal.is_open()) {
      GTEST_SKIP() << "no pseudo-terminals here";
    }
    Progress progress({.title = "train", .total = 100});
    progress.update(7, {});
    text = terminal.read_all();
  }
  EXPECT_EQ(text.rfind("train 7/100", 0), 0u) << text;
  EXPECT_TRUE(text.ends_with("\n")) << text;
}

}  // namespace
}  // namespace penstock::report
