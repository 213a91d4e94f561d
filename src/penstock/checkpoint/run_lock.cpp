#include "penstock/checkpoint/run_lock.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "penstock/base/error.h"

namespace penstock::checkpoint {

// The folder itself is locked, so no file is left behind.
RunLock::RunLock(const std::filesystem::path& run_folder) {
  descriptor_ = ::open(run_folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) {
    throw FileError(cat("cannot read ", run_folder.string(), ": ", std::strerror(errno)));
  }
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(descriptor_);
    throw ConfigError(cat("run.out = \"",
                          run_folder.string(),
                          "\" is in use by another run; wait for it, or choose another folder with "
                          "--set run.out=DIR"));
  }
  // Where the file system knows no locks, the run goes on without one.
}

RunLock::~RunLock() {
  ::close(descriptor_);
}

}  // namespace penstock::checkpoint
