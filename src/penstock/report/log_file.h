// A file of records that is only added to, and that a run can do without. What cannot be written, on a full
// disk say, ends nothing: it is said once, kept, and written when there is room again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace penstock::report {

class LogFile {
 public:
  // Made where it is not there. Throws FileError where it cannot be opened.
  explicit LogFile(std::filesystem::path path);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // The record is with the system when this returns, whole or, for now, not at all.
  void add(std::string_view record);

  const std::filesystem::path& path() const { return path_; }

 private:
  bool write_waiting();

  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;     // of whole records
  std::string waiting_;  // records that could not be written so far
  bool is_failing_ = false;
};

}  // namespace penstock::report
