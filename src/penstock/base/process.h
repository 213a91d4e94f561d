// This process as others see it, on its host and on a file system that hosts share: who it is, how much memory
// it takes, and how much it may take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

// Tells processes apart, those of other hosts and of earlier starts of this one too.
struct ProcessId {
  std::string host;  // letters, digits, '.' and '_' alone, for it is part of names of files
  std::string boot;  // of the host; hosts may share a name
  std::string pid_namespace;  // in which the number counts; containers have their own
  int64_t number = 0;
  int64_t start = 0;  // in the clock ticks of the host; numbers come back

  bool operator==(const ProcessId&) const = default;
};

ProcessId this_process();

// Of the batch job, where there is one: Slurm's number.
std::string job_id();

// Whether the process runs. Nothing: it is of another host, container or boot, where nobody here can look.
std::optional<bool> is_running(const ProcessId& process);

int64_t resident_bytes();       // RAM that the process takes now
int64_t peak_resident_bytes();  // the most so far
int64_t private_bytes();  // of those now, without pages of files, which the kernel can take back

struct MemoryCeiling {
  int64_t bytes = 0;
  std::string what;  // "the cgroup's limit"
};

// The RAM that all processes like this one may take together: the machine's, or what the cgroup allows where
// that is less.
MemoryCeiling memory_ceiling();

// What `ulimit -v` or `ulimit -d` leaves this process to allocate from now on; nothing: no limit.
std::optional<MemoryCeiling> allocation_ceiling();

}  // namespace penstock
