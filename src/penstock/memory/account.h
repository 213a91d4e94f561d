// Accounts: who holds how many bytes of a device's memory, the most they held, and the most they
// may hold. The CPU's accounts are kept by our own allocator (cpu_allocator.h), a GPU's by
// LibTorch's caching allocator (gpu_account.h).
#pragma once

#include <cstdint>
#include <string>

#include <c10/util/Exception.h>

#include "penstock/base/error.h"

namespace penstock::memory {

struct Usage {
  int64_t current_bytes = 0;  // held by live tensors
  int64_t peak_bytes = 0;     // most that was held since the last mark
};

// Bytes of one rank on its device. An account outlives its tensors.
class Account {
 public:
  virtual ~Account() = default;

  virtual Usage usage() const = 0;
  // Counts the peak from now on; the answer is what held before.
  virtual Usage restart_peak() = 0;
  virtual void raise_peak(int64_t bytes) = 0;
  // From here on an allocation that would take the account over `bytes` fails with LimitError (a
  // GPU's allocator: through refuse_over_limit) and changes nothing. 0: no limit.
  virtual void set_limit(int64_t bytes) = 0;
  virtual int64_t limit_bytes() const = 0;
  // What a device's allocator keeps of freed blocks goes back to the device.
  virtual void release_cache() {}
  virtual bool is_cpu() const = 0;
  // The most that the allocator had from the device, cached blocks included, since the start.
  virtual int64_t reserved_peak_bytes() const = 0;

  // The device's allocator gave up, in these words: throws LimitError where the limit is why, else
  // an OutOfMemory that says who holds what.
  [[noreturn]] virtual void fail_out_of_memory(const char* what) const = 0;
};

// The account of the calling thread: the CPU's process account unless an AccountScope says
// otherwise.
Account& current_account();

// The calling thread's account while it lives.
class AccountScope {
 public:
  explicit AccountScope(Account& account);
  ~AccountScope();
  AccountScope(const AccountScope&) = delete;
  AccountScope& operator=(const AccountScope&) = delete;

 private:
  Account* before_;  // nothing: the process's
};

// From here to the end of the process: for programs, which compute on one device.
void set_process_account(Account& account);

inline Usage usage(const Account& account) {
  return account.usage();
}
inline Usage usage() {
  return current_account().usage();
}
inline void set_limit(Account& account, int64_t bytes) {
  account.set_limit(bytes);
}

// Counts the peak of an account from here on, and gives the earlier peak its due when it ends, so
// that marks nest. Not to be moved between threads.
class PeakMark {
 public:
  explicit PeakMark(Account& account = current_account());
  ~PeakMark();
  PeakMark(const PeakMark&) = delete;
  PeakMark& operator=(const PeakMark&) = delete;

  int64_t start_bytes() const { return start_bytes_; }  // held when it began
  int64_t peak_bytes() const { return account_.usage().peak_bytes; }

 private:
  Account& account_;
  int64_t start_bytes_;
  int64_t outer_peak_;
};

// An allocation was refused because it would have taken the account over its limit.
class LimitError : public OutOfMemory {
 public:
  LimitError(int64_t asked, int64_t held, int64_t limit);
  LimitError(int64_t asked, int64_t held, int64_t limit, const std::string& message)
      : OutOfMemory(message), asked_(asked), held_(held), limit_(limit) {}

  int64_t asked_bytes() const { return asked_; }
  int64_t held_bytes() const { return held_; }
  int64_t limit_bytes() const { return limit_; }

 private:
  int64_t asked_, held_, limit_;
};

// Runs `work`. What LibTorch's allocator for GPUs throws becomes what Account::fail_out_of_memory
// says.
template <typename Work>
decltype(auto) refuse_over_limit(const Work& work) {
  try {
    return work();
  } catch (const c10::OutOfMemoryError& error) {
    current_account().fail_out_of_memory(error.what_without_backtrace());
    throw;  // not reached; the compiler does not believe a virtual function's [[noreturn]]
  }
}

// A limit while it lives.
class LimitScope {
 public:
  LimitScope(Account& account, int64_t bytes) : account_(account) { account.set_limit(bytes); }
  ~LimitScope();
  LimitScope(const LimitScope&) = delete;
  LimitScope& operator=(const LimitScope&) = delete;

 private:
  Account& account_;
};

}  // namespace penstock::memory
