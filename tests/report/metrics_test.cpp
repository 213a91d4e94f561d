#include "penstock/report/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/file.h"

#include "event_reader.h"
#include "support/temp_folder.h"

namespace penstock::report {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

MetricsOptions jsonl_in(const fs::path& folder, int64_t resume_step = 0) {
  return {.folder = folder, .jsonl = true, .tensorboard = false, .resume_step = resume_step};
}

std::string jsonl_text(const fs::path& folder) {
  return read_text_file(folder / "metrics.jsonl");
}

std::vector<fs::path> event_files(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().find("tfevents") != std::string::npos) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(Metrics, WritesOneObjectPerStepInTheGivenOrder) {
  const TempFolder folder;
  Metrics metrics(jsonl_in(folder.path()));
  metrics.record(1, {{"loss", 2.5}, {"a", 0.1}});
  metrics.record(2, {});
  EXPECT_EQ(jsonl_text(folder.path()), "{\"step\": 1, \"loss\": 2.5, \"a\": 0.1}\n{\"step\": 2}\n");
}

TEST(Metrics, NumbersReadBackExactly) {
  const TempFolder folder;
  Metrics metrics(jsonl_in(folder.path()));
  const std::vector<double> numbers = {1.0 / 3, 1e300, 5e-324, -0.0, 1e22, 123456789};
  for (const double number : numbers) {
    metrics.record(1, {{"x", number}});
  }
  std::istringstream lines(jsonl_text(folder.path()));
  for (const double number : numbers) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(nlohmann::json::parse(line).at("x").get<double>(), number);
  }
}

TEST(Metrics, NonFiniteNumbersAreNull) {
  const TempFolder folder;
  Metrics metrics(jsonl_in(folder.path()));
  metrics.record(
      3,
      {{"nan", std::nan("")}, {"inf", std::numeric_limits<double>::infinity()}, {"x", -HUGE_VAL}});
  EXPECT_EQ(jsonl_text(folder.path()),
            "{\"step\": 3, \"nan\": null, \"inf\": null, \"x\": null}\n");
}

TEST(Metrics, NamesAreEscaped) {
  const TempFolder folder;
  Metrics metrics(jsonl_in(folder.path()));
  metrics.record(1, {{"a\"b\\c\nd", 1}, {"broken \xFF utf-8", 2}});
  const auto object = nlohmann::json::parse(jsonl_text(folder.path()));
  EXPECT_EQ(object.at("a\"b\\c\nd"), 1);
  EXPECT_EQ(object.size(), 3u);
}

TEST(Metrics, ResumingDropsLaterSteps) {
  const TempFolder folder;
  {
    Metrics metrics(jsonl_in(folder.path()));
    for (int step = 1; step <= 5; ++step) {
      metrics.record(step, {{"loss", step}});
    }
  }
  Metrics metrics(jsonl_in(folder.path(), 3));
  metrics.record(4, {{"loss", 40}});
  EXPECT_EQ(jsonl_text(folder.path()),
            "{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 2}\n{\"step\": 3, \"loss\": 3}\n"
            "{\"step\": 4, \"loss\": 40}\n");
}

TEST(Metrics, ANewRunReplacesAnEarlierOne) {
  const TempFolder folder;
  write_text_file(folder.path() / "metrics.jsonl", "{\"step\": 0}\n{\"step\": 1}\n");
  Metrics metrics(jsonl_in(folder.path()));
  EXPECT_EQ(jsonl_text(folder.path()), "");
}

TEST(Metrics, ResumingDropsLinesThatCannotBeReadAndSaysSo) {
  const TempFolder folder;
  write_text_file(folder.path() / "metrics.jsonl",
                  "{\"step\": 1}\n"
                  "[2]\n"
                  "{\"loss\": 2}\n"
                  "{\"step\": \"2\"}\n"
                  "{\"step\": 2, \"lo");
  testing::internal::CaptureStderr();
  Metrics metrics(jsonl_in(folder.path(), 10));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("warning: dropped 4 unreadable"), std::string::npos) << log;
  metrics.record(11, {});
  EXPECT_EQ(jsonl_text(folder.path()), "{\"step\": 1}\n{\"step\": 11}\n");
}

TEST(Metrics, ResumingEndsALastLineWithoutNewline) {
  const TempFolder folder;
  write_text_file(folder.path() / "metrics.jsonl", "{\"step\": 1}");
  Metrics metrics(jsonl_in(folder.path(), 1));
  metrics.record(2, {});
  EXPECT_EQ(jsonl_text(folder.path()), "{\"step\": 1}\n{\"step\": 2}\n");
}

TEST(Metrics, ResumingWithoutAnEarlierFileStartsOne) {
  const TempFolder folder;
  Metrics metrics(jsonl_in(folder.path() / "new" / "folder", 7));
  metrics.record(8, {});
  EXPECT_EQ(jsonl_text(folder.path() / "new" / "folder"), "{\"step\": 8}\n");
}

TEST(Metrics, EventFileHasTheSameNumbers) {
  const TempFolder folder;
  Metrics metrics({.folder = folder.path(), .jsonl = true, .tensorboard = true});
  metrics.record(7, {{"loss", 2.5}, {"lr", 0.25}});
  ASSERT_EQ(event_files(folder.path()).size(), 1u);
  const auto events = read_events(event_files(folder.path())[0]);
  ASSERT_EQ(events.size(), 4u);  // version, session start, two scalars
  EXPECT_EQ(events[2].tag, "loss");
  EXPECT_EQ(events[2].step, 7);
  EXPECT_EQ(events[2].value, 2.5f);
  EXPECT_EQ(events[3].tag, "lr");
  EXPECT_EQ(events[3].value, 0.25f);
}

TEST(Metrics, ResumingTellsTensorBoardToForgetLaterSteps) {
  const TempFolder folder;
  { Metrics metrics({.folder = folder.path(), .jsonl = false, .tensorboard = true}); }
  Metrics metrics(
      {.folder = folder.path(), .jsonl = false, .tensorboard = true, .resume_step = 20});
  const auto files = event_files(folder.path());
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(read_events(files[0]).at(1).step, 0);
  EXPECT_EQ(read_events(files[1]).at(1).step, 21);
  EXPECT_EQ(read_events(files[1]).at(1).session_status, 1u);
  EXPECT_FALSE(fs::exists(folder.path() / "metrics.jsonl"));
}

TEST(Metrics, WithBothOffNothingIsWritten) {
  const TempFolder folder;
  Metrics metrics({.folder = folder.path() / "none", .jsonl = false, .tensorboard = false});
  metrics.record(1, {{"loss", 1}});
  EXPECT_FALSE(fs::exists(folder.path() / "none"));
}

TEST(Metrics, AFolderThatCannotBeMadeIsAFileError) {
  const TempFolder folder;
  write_text_file(folder.path() / "file", "");
  EXPECT_THROW(Metrics(jsonl_in(folder.path() / "file" / "below")), FileError);
}

TEST(Metrics, AFullDiskIsAFileError) {
  if (!fs::exists("/dev/full")) {
    GTEST_SKIP() << "no /dev/full";
  }
  const TempFolder folder;
  fs::create_symlink("/dev/full", folder.path() / "metrics.jsonl");
  EXPECT_THROW(Metrics(jsonl_in(folder.path())).record(1, {}), FileError);
}

}  // namespace
}  // namespace penstock::report
