#include "penstock/checkpoint/run_lock.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <random>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/log.h"
#include "penstock/checkpoint/folder_ops.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

namespace {

// As the file says; what it does not say is empty.
struct Owner {
  ProcessId process;
  std::string job, started;
};

std::string owner_text() {
  const ProcessId process = this_process();
  return nlohmann::ordered_json{{"host", process.host},
                                {"pid", process.number},
                                {"job", job_id()},
                                {"started", utc_now()},
                                {"boot", process.boot},
                                {"pid_namespace", process.pid_namespace},
                                {"process_start", process.start},
                                {"token", std::random_device{}()}}
             .dump() +
         "\n";
}

// A lock that says nothing, by a newer version or a broken disk, is one of an unknown host.
Owner parse_owner(const std::string& text) {
  Owner owner;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return owner;
  }
  const auto take = [&](const char* key, auto& value) {
    try {
      value = json.value(key, value);
    } catch (const nlohmann::json::exception&) {  // of another type
    }
  };
  take("host", owner.process.host);
  take("pid", owner.process.number);
  take("job", owner.job);
  take("started", owner.started);
  take("boot", owner.process.boot);
  take("pid_namespace", owner.process.pid_namespace);
  take("process_start", owner.process.start);
  return owner;
}

std::string describe(const Owner& owner) {
  if (owner.process.host.empty()) {
    return "another run";
  }
  return cat("another run: process ",
             owner.process.number,
             " on host ",
             owner.process.host,
             owner.job.empty() ? "" : cat(", job ", owner.job),
             owner.started.empty() ? "" : cat(", since ", owner.started));
}

// What the file says; nothing when it is not there. Read, not mapped: a file that another host deletes
// meanwhile is an error then, and no signal.
std::optional<std::string> read_if_there(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && (errno == ENOENT || errno == ESTALE)) {
    return std::nullopt;
  }
  std::string text;
  ssize_t got = -1;
  if (descriptor >= 0) {
    std::array<char, 4096> part{};
    while ((got = ::read(descriptor, part.data(), part.size())) > 0) {
      text.append(part.data(), static_cast<size_t>(got));
    }
  }
  const int error = errno;
  if (descriptor >= 0) {
    ::close(descriptor);
  }
  if (got < 0 && error != ESTALE) {
    throw FileError(cat("cannot read ", file.string(), ": ", std::strerror(error)));
  }
  return got < 0 ? std::nullopt : std::optional(text);
}

// Of the file system's clock, for that of this host may differ.
double modified_seconds(const fs::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) {
    throw FileError(cat("cannot read ", file.string(), ": ", std::strerror(errno)));
  }
  return static_cast<double>(info.st_mtim.tv_sec) +
         1e-9 * static_cast<double>(info.st_mtim.tv_nsec);
}

void touch(const fs::path& file) {
  ::utimensat(AT_FDCWD, file.c_str(), nullptr, 0);
}

// While a run waits for its folder.
void require_no_interrupt(const fs::path& folder) {
  if (was_interrupted()) {
    throw Error(ExitCode::Negative,
                cat("stopped by ", interrupt_name(), " while waiting for ", folder.string()));
  }
}

constexpr std::chrono::milliseconds kPause{200};

// Contenders of one host one after the other, while they look and take.
class OneAtATime {
 public:
  explicit OneAtATime(const fs::path& folder)
      : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (descriptor_ < 0) {
      throw FileError(cat("cannot read ", folder.string(), ": ", std::strerror(errno)));
    }
    // Where the file system knows no such locks, the link below decides.
    for (int tries = 0; ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
         ++tries) {
      if (tries == 5) {
        log_info("another run is about to begin in ", folder.string(), "; waiting for it");
      }
      try {
        require_no_interrupt(folder);
      } catch (const Error&) {
        ::close(descriptor_);
        throw;
      }
      std::this_thread::sleep_for(kPause);
    }
  }
  ~OneAtATime() { ::close(descriptor_); }
  OneAtATime(const OneAtATime&) = delete;
  OneAtATime& operator=(const OneAtATime&) = delete;

 private:
  int descriptor_;
};

// For file systems without hard links. Whoever reads the file before its text is there takes it for that of
// an unknown host, which is watched.
bool create_exclusively(const fs::path& file, const std::string& text) {
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0 && errno == EEXIST) {
    return false;
  }
  const bool is_written = descriptor >= 0 && ::write(descriptor, text.data(), text.size()) ==
                                                 static_cast<ssize_t>(text.size());
  const int error = errno;
  if (descriptor >= 0) {
    ::close(descriptor);
  }
  if (!is_written) {
    throw FileError(cat("cannot create ", file.string(), ": ", std::strerror(error)));
  }
  return true;
}

// Makes the file with this text, at once, unless there is one.
bool create_lock(const fs::path& file, const std::string& text) {
  const fs::path temporary = temporary_path(file.parent_path(), kLockName);
  remove_path(temporary);
  write_text_file(temporary, text);
  const bool is_made = ::link(temporary.c_str(), file.c_str()) == 0;
  const int error = errno;
  remove_path(temporary);
  if (is_made) {
    return true;
  }
  if (error == EEXIST) {
    // A file server may have done it and lost the answer.
    return read_if_there(file) == text;
  }
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS) {
    return create_exclusively(file, text);
  }
  throw FileError(cat("cannot create ", file.string(), ": ", std::strerror(error)));
}

// Takes away the lock that says `text`; one that has come in its place meanwhile is put back.
void take_away(const fs::path& file, const std::string& text) {
  const fs::path temporary = temporary_path(file.parent_path(), "stale-lock");
  remove_path(temporary);
  if (::rename(file.c_str(), temporary.c_str()) != 0) {
    return;  // somebody else has
  }
  if (read_if_there(temporary) != text) {
    ::link(temporary.c_str(), file.c_str());
  }
  remove_path(temporary);
}

[[noreturn]] void fail_in_use(const fs::path& file, const std::string& text) {
  throw ConfigError(cat("run.out = \"",
                        file.parent_path().string(),
                        "\" is in use by ",
                        describe(parse_owner(text)),
                        "; wait for it, or choose another folder with --set run.out=DIR"));
}

// Returns once the owner counts as gone, and throws where it lives.
void wait_for_death(const fs::path& file, const std::string& text, const LockTimes& times) {
  const Owner owner = parse_owner(text);
  const std::optional<bool> lives = is_running(owner.process);
  if (lives) {
    return *lives ? fail_in_use(file, text) : void();
  }
  const fs::path probe = temporary_path(file.parent_path(), "clock");
  refresh_text_file(probe, "");
  const double last = modified_seconds(file);
  double silent = std::max(0.0, modified_seconds(probe) - last);
  remove_path(probe);
  if (silent < times.stale_s) {
    log_info(file.string(),
             " is held by ",
             describe(owner),
             "; waiting up to ",
             static_cast<int64_t>(times.stale_s - silent) + 1,
             " s to see whether it lives");
  }
  for (const double began = now_seconds(), before = silent; silent < times.stale_s;
       silent = before + now_seconds() - began) {
    require_no_interrupt(file.parent_path());
    std::this_thread::sleep_for(kPause);
    const std::optional<std::string> now = read_if_there(file);
    if (!now) {
      return;  // it has ended
    }
    if (*now != text || modified_seconds(file) != last) {
      fail_in_use(file, *now);
    }
  }
}

}  // namespace

RunLock::RunLock(fs::path run_folder, LockTimes times)
    : file_(std::move(run_folder) / kLockName), times_(times), token_(owner_text()) {
  const OneAtATime turn(file_.parent_path());
  while (!create_lock(file_, token_)) {
    const std::optional<std::string> text = read_if_there(file_);
    if (!text) {
      continue;
    }
    wait_for_death(file_, *text, times_);
    take_away(file_, *text);
  }
  heart_ = std::thread([this] { beat(); });
}

void RunLock::beat() {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> pause(times_.heartbeat_s);
  while (!changed_.wait_for(lock, pause, [&] { return is_ending_; })) {
    try {
      if (read_if_there(file_) == token_) {
        touch(file_);
      } else {
        was_lost_ = true;
      }
    } catch (const FileError&) {
      // A file server that is away for a moment; require_held() says what is lost.
    }
  }
}

void RunLock::require_held() const {
  const std::optional<std::string> text = read_if_there(file_);
  if (text == token_) {
    return;
  }
  throw ConfigError(
      cat(file_.string(),
          text ? cat(" is now held by ", describe(parse_owner(*text))) : std::string(" is gone"),
          ", so this run, which stood still for too long, writes nothing more into the "
          "folder; choose another folder with --set run.out=DIR and --resume"));
}

bool RunLock::is_held() const {
  try {
    return read_if_there(file_) == token_;
  } catch (const FileError&) {
    return false;
  }
}

RunLock::~RunLock() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  heart_.join();
  try {
    if (is_held()) {
      remove_path(file_);
    }
  } catch (const FileError&) {
    // What stays is a lock of a process that is gone.
  }
}

}  // namespace penstock::checkpoint
