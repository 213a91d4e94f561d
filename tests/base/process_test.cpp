#include "penstock/base/process.h"

#include <cstring>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace penstock {
namespace {

// Runs `check` in a process of its own, which may change what is the process's; true when it said true.
template <typename Check>
bool holds_in_a_child(const Check& check) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(check() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Process, HasANumberAndAPlainHost) {
  const ProcessId own = this_process();
  EXPECT_EQ(own.number, ::getpid());
  EXPECT_GT(own.start, 0);
  EXPECT_FALSE(own.host.empty());
  EXPECT_EQ(own.host.find_first_of("-/ \n"), std::string::npos);
  EXPECT_EQ(own.boot.find('\n'), std::string::npos);
  EXPECT_EQ(own, this_process());
}

TEST(Process, IsRunningKnowsItsOwnHostAlone) {
  const ProcessId own = this_process();
  EXPECT_EQ(is_running(own), std::optional(true));
  ProcessId other = own;
  other.start += 1;  // a number that came back
  EXPECT_EQ(is_running(other), std::optional(false));
  other = own;
  other.number = 1 << 23;  // larger than any
  EXPECT_EQ(is_running(other), std::optional(false));
  for (std::string ProcessId::*field :
       {&ProcessId::host, &ProcessId::boot, &ProcessId::pid_namespace}) {
    other = own;
    other.*field += "x";
    EXPECT_EQ(is_running(other), std::nullopt);
  }
}

TEST(Process, ResidentBytesFollowWhatIsTouched) {
  constexpr size_t kBytes = size_t{64} << 20;
  const int64_t before = resident_bytes();
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  EXPECT_GE(resident_bytes() - before, static_cast<int64_t>(kBytes) * 9 / 10);
  EXPECT_GE(private_bytes(), static_cast<int64_t>(kBytes) * 9 / 10);
  EXPECT_LE(private_bytes(), resident_bytes());
  ::munmap(memory, kBytes);
  EXPECT_LT(resident_bytes() - before, static_cast<int64_t>(kBytes) / 2);
  EXPECT_GE(peak_resident_bytes() - before, static_cast<int64_t>(kBytes) * 9 / 10);
}

TEST(Process, MayTakeTheMachinesMemoryAtMost) {
  const MemoryCeiling ceiling = memory_ceiling();
  EXPECT_GT(ceiling.bytes, resident_bytes());
  EXPECT_LE(ceiling.bytes,
            static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE));
  EXPECT_TRUE(ceiling.what == "the machine's memory" || ceiling.what == "the cgroup's limit");
}

TEST(Process, MayAllocateWhatUlimitLeaves) {
  EXPECT_TRUE(holds_in_a_child([] {
    struct rlimit limit {
      RLIM_INFINITY, RLIM_INFINITY
    };
    ::getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = rlim_t{1} << 50;  // sanitizers map terabytes
    if (::setrlimit(RLIMIT_AS, &limit) != 0) {
      return false;
    }
    const auto ceiling = allocation_ceiling();
    return ceiling && ceiling->what == "ulimit -v" && ceiling->bytes < int64_t{1} << 50 &&
           ceiling->bytes > int64_t{1} << 49;
  }));
  EXPECT_TRUE(holds_in_a_child([] {
    struct rlimit limit {};
    ::getrlimit(RLIMIT_DATA, &limit);
    limit.rlim_cur = rlim_t{1} << 36;
    return ::setrlimit(RLIMIT_DATA, &limit) == 0 && allocation_ceiling() &&
           allocation_ceiling()->what == "ulimit -d";
  }));
}

}  // namespace
}  // namespace penstock
