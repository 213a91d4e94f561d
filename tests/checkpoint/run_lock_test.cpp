#include "penstock/checkpoint/run_lock.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/file.h"

#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_text;

constexpr LockTimes kShort{.heartbeat_s = 0.05, .stale_s = 0.6};

class RunLockTest : public testing::Test {
 protected:
  fs::path file() const { return folder_.path() / kLockName; }
  json content() const { return json::parse(read_text_file(file())); }
  void leave_lock(const json& owner) const { write_text_file(file(), owner.dump()); }
  // As if its owner had last touched it then.
  void set_age(std::chrono::seconds age) const {
    fs::last_write_time(file(), fs::file_time_type::clock::now() - age);
  }
  std::string refused(LockTimes times = kShort) const {
    return error_text<ConfigError>([&] { const RunLock lock(folder_.path(), times); });
  }
  // Of a process of this host that is gone.
  json dead_owner() const {
    const pid_t child = ::fork();
    if (child == 0) {
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    const ProcessId own = this_process();
    return {{"host", own.host},
            {"pid", child},
            {"boot", own.boot},
            {"pid_namespace", own.pid_namespace},
            {"process_start", own.start}};
  }

  test::TempFolder folder_;
};

TEST_F(RunLockTest, SaysWhoHasTheFolderAndLeavesNothing) {
  {
    const RunLock lock(folder_.path());
    EXPECT_EQ(content().at("host"), this_process().host);
    EXPECT_EQ(content().at("pid"), ::getpid());
    const std::string text = refused();
    EXPECT_NE(text.find("is in use by another run: process " + std::to_string(::getpid()) +
                        " on host " + this_process().host),
              std::string::npos)
        << text;
    lock.require_held();
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  const RunLock again(folder_.path());
}

TEST_F(RunLockTest, AProcessOfThisHostThatIsGoneLosesItAtOnce) {
  leave_lock(dead_owner());
  const auto began = std::chrono::steady_clock::now();
  const RunLock lock(folder_.path());  // stale after a minute
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  EXPECT_EQ(content().at("pid"), ::getpid());
}

TEST_F(RunLockTest, ANumberThatCameBackIsNotTheOwner) {
  json owner = dead_owner();
  owner["pid"] = ::getpid();  // of a process that started at another time
  owner["process_start"] = this_process().start - 1;
  leave_lock(owner);
  const RunLock lock(folder_.path());
}

TEST_F(RunLockTest, AnotherHostThatTouchesItHasIt) {
  json owner = dead_owner();
  owner["host"] = "elsewhere";
  owner["job"] = "4711";
  leave_lock(owner);
  std::atomic<bool> ends = false;
  std::thread heart([&] {
    while (!ends) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      fs::last_write_time(file(), fs::file_time_type::clock::now());
    }
  });
  const std::string text = refused({.heartbeat_s = 0.05, .stale_s = 20});
  ends = true;
  heart.join();
  EXPECT_NE(text.find("on host elsewhere, job 4711"), std::string::npos) << text;
  EXPECT_EQ(content().at("host"), "elsewhere");
}

TEST_F(RunLockTest, AnotherHostThatIsSilentLosesItInTime) {
  for (const char* key : {"host", "boot", "pid_namespace"}) {
    json owner = dead_owner();
    owner[key] = "other";
    owner["pid"] = ::getpid();  // says nothing there
    leave_lock(owner);
    set_age(std::chrono::seconds(0));
    const auto began = std::chrono::steady_clock::now();
    { const RunLock lock(folder_.path(), kShort); }
    EXPECT_GT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(300)) << key;
  }
}

TEST_F(RunLockTest, AnotherHostThatHasLongBeenSilentLosesItAtOnce) {
  json owner = dead_owner();
  owner["host"] = "elsewhere";
  leave_lock(owner);
  set_age(std::chrono::seconds(100));
  const auto began = std::chrono::steady_clock::now();
  const RunLock lock(folder_.path());
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

TEST_F(RunLockTest, ALockThatSaysNothingIsOfAnUnknownHost) {
  for (const char* text : {"", "{", "[]", R"({"host": 3, "pid": "x"})"}) {
    write_text_file(file(), text);
    const RunLock lock(folder_.path(), kShort);
  }
  write_text_file(file(), "{");
  std::thread heart([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    write_text_file(file(), "{}");
  });
  const std::string error = refused({.heartbeat_s = 0.05, .stale_s = 20});
  heart.join();
  EXPECT_NE(error.find("is in use by another run; wait"), std::string::npos) << error;
}

TEST_F(RunLockTest, ItsOwnerTouchesIt) {
  const RunLock lock(folder_.path(), kShort);
  set_age(std::chrono::seconds(100));
  const auto before = fs::last_write_time(file());
  for (int i = 0; i < 100 && fs::last_write_time(file()) == before; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_GT(fs::last_write_time(file()), before);
}

TEST_F(RunLockTest, WhoHasLostItSaysSoAndLeavesTheOtherAlone) {
  {
    const RunLock lock(folder_.path(), kShort);
    EXPECT_FALSE(lock.was_lost());
    json other = dead_owner();
    other["host"] = "elsewhere";
    leave_lock(other);
    for (int i = 0; i < 500 && !lock.was_lost(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_TRUE(lock.was_lost());
    const std::string text = error_text<ConfigError>([&] { lock.require_held(); });
    EXPECT_NE(text.find("is now held by another run"), std::string::npos) << text;
    EXPECT_NE(text.find("on host elsewhere"), std::string::npos) << text;
  }
  EXPECT_EQ(content().at("host"), "elsewhere");
  fs::remove(file());
  const RunLock lock(folder_.path());
  fs::remove(file());
  const std::string text = error_text<ConfigError>([&] { lock.require_held(); });
  EXPECT_NE(text.find("run.lock is gone"), std::string::npos) << text;
}

TEST_F(RunLockTest, OneOfManyContendersGetsADeadOnesFolder) {
  for (int round = 0; round < 5; ++round) {
    leave_lock(dead_owner());
    std::atomic<int> holders = 0, refusals = 0, most = 0;
    std::vector<std::thread> contenders;
    for (int i = 0; i < 8; ++i) {
      contenders.emplace_back([&] {
        try {
          const RunLock lock(folder_.path());
          most = std::max(most.load(), ++holders);
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          --holders;
        } catch (const ConfigError&) {
          ++refusals;
        }
      });
    }
    for (std::thread& contender : contenders) {
      contender.join();
    }
    EXPECT_EQ(most, 1);
    EXPECT_LT(refusals, 8);
  }
}

}  // namespace
}  // namespace penstock::checkpoint
