#include "penstock/base/log.h"

#include <cstdio>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace penstock {
namespace {

class LogTest : public testing::Test {
 protected:
  ~LogTest() override {
    set_live_display({});
    set_log_level(LogLevel::Info);
  }

  template <typename Call>
  static std::string written_by(const Call& call) {
    testing::internal::CaptureStderr();
    call();
    return testing::internal::GetCapturedStderr();
  }

  static void log_at_every_level() {
    log_info("info ", 2);
    log_warning("slow ", 3);
    log_line(LogLevel::Error, "error");
  }
};

TEST_F(LogTest, EachLevelHidesThoseBelow) {
  const std::vector<std::pair<LogLevel, std::string>> cases = {
      {LogLevel::Info, "info 2\nwarning: slow 3\nerror\n"},
      {LogLevel::Warning, "warning: slow 3\nerror\n"},
      {LogLevel::Error, "error\n"}};
  for (const auto& [level, expected] : cases) {
    set_log_level(level);
    EXPECT_EQ(log_level(), level);
    EXPECT_EQ(written_by(log_at_every_level), expected);
  }
}

TEST_F(LogTest, StandardOutputStaysFree) {
  testing::internal::CaptureStdout();
  written_by(log_at_every_level);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST_F(LogTest, TheLiveDisplayIsHiddenWhileALineIsWritten) {
  // The display writes to the same stream, so the order shows.
  set_live_display(
      {.hide = [] { fputs("<hide>", stderr); }, .show = [] { fputs("<show>", stderr); }});
  EXPECT_EQ(written_by([] {
              log_info("one");
              log_info("two");
            }),
            "<hide>one\n<show><hide>two\n<show>");
}

TEST_F(LogTest, AHiddenLineLeavesTheDisplayAlone) {
  int calls = 0;
  set_live_display({.hide = [&] { ++calls; }, .show = [&] { ++calls; }});
  set_log_level(LogLevel::Warning);
  EXPECT_EQ(written_by([] { log_info("not shown"); }), "");
  EXPECT_EQ(calls, 0);
}

TEST_F(LogTest, ARemovedDisplayIsNotCalled) {
  int calls = 0;
  set_live_display({.hide = [&] { ++calls; }, .show = [&] { ++calls; }});
  set_live_display({});
  EXPECT_EQ(written_by([] { log_info("line"); }), "line\n");
  EXPECT_EQ(calls, 0);
}

TEST_F(LogTest, LinesOfSeveralThreadsDoNotMix) {
  const std::string written = written_by([] {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([=] {
        for (int i = 0; i < 200; ++i) {
          log_info(std::string(50, static_cast<char>('a' + thread)));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
  ASSERT_EQ(written.size(), 4u * 200 * 51);
  for (size_t line = 0; line < 800; ++line) {
    EXPECT_EQ(written.substr(51 * line, 51), std::string(50, written[51 * line]) + "\n");
  }
}

}  // namespace
}  // namespace penstock
