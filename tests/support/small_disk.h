// A file system of a few bytes, where this process may mount one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <sys/mount.h>
#include <utility>

namespace penstock::test {

class SmallDisk {
 public:
  SmallDisk(std::filesystem::path folder, int64_t bytes)
      : folder_(std::move(folder)),
        is_mounted_(
            ::mount(
                "tmpfs", folder_.c_str(), "tmpfs", 0, ("size=" + std::to_string(bytes)).c_str()) ==
            0) {}
  ~SmallDisk() {
    if (is_mounted_) {
      ::umount(folder_.c_str());
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool is_mounted() const { return is_mounted_; }

 private:
  std::filesystem::path folder_;
  bool is_mounted_;
};

}  // namespace penstock::test
