#include "penstock/report/log_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/log.h"

namespace penstock::report {

namespace {

// A run of weeks on a full disk must not fill memory instead.
constexpr size_t kMostWaiting = size_t{4} << 20;

}  // namespace

LogFile::LogFile(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  struct stat found = {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &found) != 0) {
    const int error = errno;
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
    throw FileError(cat("cannot write ", path_.string(), ": ", std::strerror(error)));
  }
  size_ = found.st_size;
}

LogFile::~LogFile() {
  write_waiting();
  ::close(descriptor_);
}

void LogFile::add(std::string_view record) {
  if (waiting_.size() + record.size() > kMostWaiting) {
    log_warning(waiting_.size(), " bytes for ", path_.string(), " are lost: it cannot be written");
    waiting_.clear();
  }
  waiting_ += record;
  if (write_waiting() && std::exchange(is_failing_, false)) {
    log_info("writes ", path_.string(), " again");
  }
}

bool LogFile::write_waiting() {
  for (size_t done = 0; done < waiting_.size();) {
    const ssize_t written = ::write(descriptor_, waiting_.data() + done, waiting_.size() - done);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written > 0) {
      done += static_cast<size_t>(written);
      continue;
    }
    const int error = errno;
    // No part of a record stays: readers take whole ones. (A pipe or a device has no size to go back to.)
    if (done > 0 && ::ftruncate(descriptor_, size_) != 0) {
      waiting_.erase(0, done);
    }
    if (!std::exchange(is_failing_, true)) {
      log_warning("cannot write ",
                  path_.string(),
                  ": ",
                  std::strerror(error),
                  "; the run goes on, and writes it when it can");
    }
    return false;
  }
  size_ += static_cast<int64_t>(waiting_.size());
  waiting_.clear();
  return true;
}

}  // namespace penstock::report
