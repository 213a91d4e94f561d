#include "penstock/base/process.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <signal.h>
#include <sstream>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include "penstock/base/text.h"

namespace penstock {

namespace fs = std::filesystem;

namespace {

// Of files in /proc and /sys, whose size nobody knows before they are read. Empty: there is none.
std::string read_system_file(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string without_newline(std::string text) {
  text.erase(std::find(text.begin(), text.end(), '\n'), text.end());
  return text;
}

std::string plain_host_name() {
  std::array<char, 256> buffer{};
  std::string name = ::gethostname(buffer.data(), buffer.size() - 1) == 0 ? buffer.data() : "";
  for (char& letter : name) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(letter)) || letter == '.';
    letter = is_plain ? letter : '_';
  }
  return name.empty() ? "unknown" : name;
}

// Field 22 of /proc/PID/stat. The second is the program's name in brackets, which may hold anything.
std::optional<int64_t> start_of(const std::string& process) {
  const std::string text = read_system_file(fs::path("/proc") / process / "stat");
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream rest(text.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) {
    rest >> field;
  }
  int64_t start = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), start);
  return error == std::errc() ? std::optional(start) : std::nullopt;
}

std::string find_pid_namespace() {
  std::error_code unused;
  return fs::read_symlink("/proc/self/ns/pid", unused).string();
}

// "VmRSS:   1234 kB" of /proc/self/status.
int64_t status_bytes(std::string_view key) {
  std::istringstream lines(read_system_file("/proc/self/status"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key)) {
      return std::strtoll(line.c_str() + key.size(), nullptr, 10) * 1024;
    }
  }
  return 0;
}

// The number that the file begins with. Nothing: there is none, as in "max".
std::optional<int64_t> number_in(const fs::path& path) {
  const std::string text = read_system_file(path);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

// The folder of this process's cgroup, for version 2 ("0::/path") or for version 1's memory controller.
std::vector<std::pair<fs::path, const char*>> cgroup_files() {
  std::vector<std::pair<fs::path, const char*>> found;
  std::istringstream lines(read_system_file("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 2);  // without the leading slash
    if (controllers.empty()) {
      found.emplace_back(fs::path("/sys/fs/cgroup") / path, "memory.max");
    } else if (cat(",", controllers, ",").find(",memory,") != std::string::npos) {
      found.emplace_back(fs::path("/sys/fs/cgroup/memory") / path, "memory.limit_in_bytes");
    }
  }
  return found;
}

int64_t machine_memory() {
  return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

ProcessId this_process() {
  return {.host = plain_host_name(),
          .boot = without_newline(read_system_file("/proc/sys/kernel/random/boot_id")),
          .pid_namespace = find_pid_namespace(),
          .number = ::getpid(),
          .start = start_of("self").value_or(0)};
}

std::string job_id() {
  const char* const job = std::getenv("SLURM_JOB_ID");
  return job == nullptr ? "" : job;
}

std::optional<bool> is_running(const ProcessId& process) {
  const ProcessId own = this_process();
  if (process.host != own.host || process.boot != own.boot ||
      process.pid_namespace != own.pid_namespace) {
    return std::nullopt;
  }
  if (::kill(static_cast<pid_t>(process.number), 0) != 0 && errno == ESRCH) {
    return false;
  }
  const std::optional<int64_t> start = start_of(std::to_string(process.number));
  return !start || *start == process.start;
}

int64_t resident_bytes() {
  return status_bytes("VmRSS:");
}

int64_t private_bytes() {
  return status_bytes("RssAnon:") + status_bytes("RssShmem:");
}

int64_t peak_resident_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

MemoryCeiling memory_ceiling() {
  MemoryCeiling least{machine_memory(), "the machine's memory"};
  for (const auto& [start, name] : cgroup_files()) {
    // A group is held to the limits of all that it is in.
    for (fs::path folder = start; folder.string().size() > 1; folder = folder.parent_path()) {
      const std::optional<int64_t> limit = number_in(folder / name);
      if (limit && *limit < least.bytes) {
        least = {*limit, "the cgroup's limit"};
      }
    }
  }
  return least;
}

std::optional<MemoryCeiling> allocation_ceiling() {
  std::optional<MemoryCeiling> least;
  const auto consider = [&](auto resource, const char* taken, const char* what) {
    struct rlimit limit {};
    if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
      return;
    }
    const int64_t left =
        std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - status_bytes(taken));
    if (!least || left < least->bytes) {
      least = MemoryCeiling{left, what};
    }
  };
  consider(RLIMIT_AS, "VmSize:", "ulimit -v");
  consider(RLIMIT_DATA, "VmData:", "ulimit -d");
  return least;
}

}  // namespace penstock
