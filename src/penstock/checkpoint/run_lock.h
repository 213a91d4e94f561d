// One run per folder at a time.
#pragma once

#include <filesystem>

namespace penstock::checkpoint {

// Holds the folder until destroyed, or until the process ends however it ends. Throws ConfigError
// when another process holds it.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace penstock::checkpoint
