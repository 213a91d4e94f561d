// One run per folder at a time, whatever host it is on. The file run.lock says who has the folder. Its owner
// touches it every few seconds, so the file system's own clock tells how long ago it last did: clocks of hosts
// differ, and flock() is local to each on some shared file systems.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "penstock/base/process.h"

namespace penstock::checkpoint {

inline constexpr const char* kLockName = "run.lock";

struct LockTimes {
  double heartbeat_s = 10;
  // After so long without a heartbeat the owner is taken for dead, where nobody here can look.
  double stale_s = 60;
};

class RunLock {
 public:
  // Holds the folder until destroyed. Where a process of this host has left its lock and is gone, it is taken
  // over at once; another host's is watched until it shows a heartbeat or is stale. Throws ConfigError, with
  // who has the folder, when the owner lives; Error (exit code 1) when this process is told to stop meanwhile.
  explicit RunLock(std::filesystem::path run_folder, LockTimes times = {});
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Throws ConfigError where another run has taken the folder meanwhile, as it does when this process stood
  // still for so long that it looked dead. To be asked before anything in the folder is replaced.
  void require_held() const;
  bool is_held() const;
  // As the heartbeat has seen it. Costs nothing.
  bool was_lost() const { return was_lost_; }

 private:
  void beat();

  std::filesystem::path file_;
  LockTimes times_;
  std::string token_;  // what this lock's file says, to the letter
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::atomic<bool> was_lost_ = false;
  std::thread heart_;
};

}  // namespace penstock::checkpoint
