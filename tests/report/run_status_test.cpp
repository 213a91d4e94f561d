#include "penstock/report/run_status.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "penstock/base/file.h"
#include "penstock/base/process.h"

#include "support/temp_folder.h"

namespace penstock::report {
namespace {

using nlohmann::json;

TEST(RunStatus, SaysAllThatIsKnown) {
  const json status = json::parse(status_json({.state = kInterrupted,
                                               .reason = "SIGTERM",
                                               .step = 3,
                                               .steps = 9,
                                               .loss = 2.5,
                                               .validation_loss = 2.75,
                                               .peak_bytes = 1000,
                                               .peak_resident_bytes = 2000,
                                               .checkpoint = "out/step-00000003"}));
  EXPECT_EQ(status.at("state"), "interrupted");
  EXPECT_EQ(status.at("reason"), "SIGTERM");
  EXPECT_EQ(status.at("step"), 3);
  EXPECT_EQ(status.at("steps"), 9);
  EXPECT_EQ(status.at("loss"), 2.5);
  EXPECT_EQ(status.at("validation_loss"), 2.75);
  EXPECT_EQ(status.at("peak_bytes"), 1000);
  EXPECT_EQ(status.at("peak_rss_bytes"), 2000);
  EXPECT_EQ(status.at("checkpoint"), "out/step-00000003");
  EXPECT_EQ(status.at("host"), this_process().host);
  EXPECT_EQ(status.at("pid"), ::getpid());
  EXPECT_EQ(status.at("updated").get<std::string>().size(), 20U);
}

TEST(RunStatus, WhatIsNoNumberIsNull) {
  const json status = json::parse(status_json({.loss = std::nan("")}));
  EXPECT_TRUE(status.at("loss").is_null());
  EXPECT_TRUE(status.at("validation_loss").is_null());
  EXPECT_EQ(status.at("state"), "running");
}

TEST(RunStatus, AReasonOfAnyBytesIsStillJson) {
  EXPECT_NO_THROW(static_cast<void>(json::parse(status_json({.reason = "\xff\n\"\\"}))));
}

class StatusFileTest : public testing::Test {
 protected:
  json read() const { return json::parse(read_text_file(folder_.path() / kStatusName)); }

  test::TempFolder folder_;
};

TEST_F(StatusFileTest, IsWrittenOnceASecondAndAtTheEnd) {
  StatusFile file(folder_.path());
  file.show({.step = 1});
  file.show({.step = 2});  // too soon
  EXPECT_EQ(read().at("step"), 1);
  ::usleep(1'100'000);
  file.show({.step = 3});
  EXPECT_EQ(read().at("step"), 3);
  file.show({.state = kFinished, .step = 4});
  EXPECT_EQ(read().at("step"), 4);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(StatusFileTest, ARunGoesOnWithoutIt) {
  const std::filesystem::path missing = folder_.path() / "missing";
  StatusFile file(missing);
  testing::internal::CaptureStderr();
  file.show({.state = kFinished});
  file.show({.state = kFinished});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("warning: cannot write " + (missing / kStatusName).string()), 0U) << text;
  EXPECT_EQ(text.find("warning", 1), std::string::npos) << "said twice: " << text;
  std::filesystem::create_directory(missing);
  file.show({.state = kFinished, .step = 5});
  EXPECT_TRUE(std::filesystem::exists(missing / kStatusName));
}

}  // namespace
}  // namespace penstock::report
