#include "penstock/report/event_file.h"

#include <cmath>
#include <ctime>
#include <limits>
#include <unistd.h>

#include <gtest/gtest.h>

#include "penstock/base/error.h"

#include "event_reader.h"
#include "support/temp_folder.h"

namespace penstock::report {
namespace {

using test::TempFolder;

TEST(EventFile, NameCarriesTimeHostAndProcess) {
  const TempFolder folder;
  const std::string before = std::to_string(std::time(nullptr)).substr(0, 6);
  const EventFile file(folder.path());
  const std::string name = file.path().filename().string();
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  EXPECT_EQ(file.path().parent_path(), folder.path());
  EXPECT_EQ(name.rfind("events.out.tfevents." + before, 0), 0u) << name;
  EXPECT_TRUE(name.ends_with("." + std::string(host) + "." + std::to_string(::getpid()))) << name;
}

TEST(EventFile, BeginsWithTheFileVersion) {
  const TempFolder folder;
  const EventFile file(folder.path());
  const auto events = read_events(file.path());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_NEAR(events[0].wall_time, static_cast<double>(std::time(nullptr)), 5);
}

TEST(EventFile, RecordsCarryMaskedChecksums) {
  const TempFolder folder;
  EventFile file(folder.path());
  for (int step = 0; step < 300; ++step) {
    file.add_scalar("train/loss", 1.0 / (step + 1), step);
  }
  file.flush();
  EXPECT_EQ(read_records(file.path()).size(), 301u);  // the reader throws on a wrong checksum
}

TEST(EventFile, ScalarsComeBackWithTagStepAndValue) {
  const TempFolder folder;
  EventFile file(folder.path());
  const std::string long_tag(300, 'x');  // its length takes two varint bytes
  file.add_scalar("loss", 2.5, 1);
  file.add_scalar(long_tag, -1e-30, 127);
  file.add_scalar("größe", 0, 128);
  file.add_scalar("", 1, std::numeric_limits<int64_t>::max());
  file.add_scalar("negative", 1, -1);
  file.flush();
  const auto events = read_events(file.path());
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[1].tag, "loss");
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[1].value, 2.5f);
  EXPECT_GE(events[1].wall_time, events[0].wall_time);
  EXPECT_EQ(events[2].tag, long_tag);
  EXPECT_EQ(events[2].step, 127);
  EXPECT_EQ(events[2].value, -1e-30f);
  EXPECT_EQ(events[3].tag, "größe");
  EXPECT_EQ(events[3].step, 128);
  EXPECT_EQ(events[3].value, 0.0f);
  EXPECT_EQ(events[4].step, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(events[5].step, -1);
}

TEST(EventFile, KeepsNonFiniteValues) {
  const TempFolder folder;
  EventFile file(folder.path());
  file.add_scalar("loss", std::nan(""), 1);
  file.add_scalar("loss", std::numeric_limits<double>::infinity(), 2);
  file.flush();
  const auto events = read_events(file.path());
  EXPECT_TRUE(std::isnan(events[1].value.value()));
  EXPECT_TRUE(std::isinf(events[2].value.value()));
}

TEST(EventFile, ForgettingIsASessionStart) {
  const TempFolder folder;
  EventFile file(folder.path());
  file.forget_from(41);
  file.flush();
  const auto events = read_events(file.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].step, 41);
  EXPECT_EQ(events[1].session_status, 1u);
}

TEST(EventFile, WritesOnFlushAndOnClose) {
  const TempFolder folder;
  std::filesystem::path path;
  {
    EventFile file(folder.path());
    path = file.path();
    file.add_scalar("loss", 1, 1);
    EXPECT_EQ(read_events(path).size(), 1u);
    file.flush();
    EXPECT_EQ(read_events(path).size(), 2u);
    file.flush();
    EXPECT_EQ(read_events(path).size(), 2u);
    file.add_scalar("loss", 1, 2);
  }
  EXPECT_EQ(read_events(path).size(), 3u);
}

TEST(EventFile, TwoInTheSameSecondGetTheirOwnFiles) {
  const TempFolder folder;
  EventFile first(folder.path());
  EventFile second(folder.path());
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(read_events(first.path()).size(), 1u);
}

TEST(EventFile, MissingFolderIsAFileError) {
  EXPECT_THROW(EventFile("/nonexistent/folder"), FileError);
}

}  // namespace
}  // namespace penstock::report
