#include "penstock/report/log_file.h"

#include <csignal>
#include <string>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"

#include "support/temp_folder.h"

namespace penstock::report {
namespace {

// While it lives, files of this process cannot grow beyond so many bytes: as if the disk were full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit less = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &less);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  void (*handler_)(int);
};

TEST(LogFile, AddsToWhatIsThere) {
  const test::TempFolder folder;
  const auto path = folder.path() / "log";
  LogFile(path).add("one\n");
  LogFile again(path);
  again.add("two\n");
  EXPECT_EQ(read_text_file(path), "one\ntwo\n");
}

// Half of a record would be a broken line for whoever reads the file.
TEST(LogFile, AFullDiskEndsNothingAndLosesNothing) {
  const test::TempFolder folder;
  const auto path = folder.path() / "log";
  LogFile log(path);
  log.add("first record\n");
  {
    const FullDisk full(20);
    log.add("second record\n");
    EXPECT_EQ(read_text_file(path), "first record\n");
    log.add("third record\n");
    EXPECT_EQ(read_text_file(path), "first record\n");
  }
  log.add("fourth record\n");
  EXPECT_EQ(read_text_file(path), "first record\nsecond record\nthird record\nfourth record\n");
}

TEST(LogFile, WhatWaitsIsWrittenAtTheEndWhereThereIsRoomAgain) {
  const test::TempFolder folder;
  const auto path = folder.path() / "log";
  {
    LogFile log(path);
    const FullDisk full(0);
    log.add("record\n");
    EXPECT_EQ(read_text_file(path), "");
  }
  EXPECT_EQ(read_text_file(path), "record\n");
}

TEST(LogFile, WhatCannotBeOpenedIsAnError) {
  EXPECT_THROW(LogFile("/no/such/folder/log"), FileError);
}

}  // namespace
}  // namespace penstock::report
