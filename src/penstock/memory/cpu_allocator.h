// The allocator behind every LibTorch tensor on the CPU. It counts bytes exactly, per account, and
// can hold an account to a limit. It also keeps freed blocks for the next step: a training step asks
// for the same sizes again and again, and fresh pages from the kernel cost more than many of the
// operations that fill them.
#pragma once

#include <cstdint>

#include "penstock/base/error.h"

namespace penstock::memory {

// Makes it LibTorch's CPU allocator. Call before the first tensor is made; further calls do
// nothing.
void install_cpu_allocator();
bool is_cpu_allocator_installed();

struct CpuUsage {
  int64_t current_bytes = 0;  // held by live tensors
  int64_t peak_bytes = 0;     // most that was held since the last mark
};

// Bytes of one rank. Tensors are charged to the account of the thread that makes them, for as long
// as they live, whichever thread frees them; what an operation's helper threads make themselves goes
// to the process. An account outlives its tensors.
class Account;

// What a thread is charged to unless an AccountScope says otherwise.
Account& process_account();

// A rank's own account, never destroyed: tensors may outlive the rank.
Account& make_account();

Account& current_account();

// Charges the calling thread's tensors to `account` while it lives.
class AccountScope {
 public:
  explicit AccountScope(Account& account);
  ~AccountScope();
  AccountScope(const AccountScope&) = delete;
  AccountScope& operator=(const AccountScope&) = delete;

 private:
  Account& before_;
};

CpuUsage usage(const Account& account);
inline CpuUsage cpu_usage() {
  return usage(current_account());
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
  int64_t peak_bytes() const;                           // most held since

 private:
  Account& account_;
  int64_t start_bytes_;
  int64_t outer_peak_;
};

// An allocation was refused because it would have taken the account over its limit.
class LimitError : public Error {
 public:
  LimitError(int64_t asked, int64_t held, int64_t limit);

  int64_t asked_bytes() const { return asked_; }
  int64_t held_bytes() const { return held_; }
  int64_t limit_bytes() const { return limit_; }

 private:
  int64_t asked_, held_, limit_;
};

// From here on an allocation that would take the account over `bytes` throws LimitError and changes
// nothing. 0: no limit.
void set_limit(Account& account, int64_t bytes);

// A limit while it lives.
class LimitScope {
 public:
  LimitScope(Account& account, int64_t bytes) : account_(account) { set_limit(account, bytes); }
  ~LimitScope() { set_limit(account_, 0); }
  LimitScope(const LimitScope&) = delete;
  LimitScope& operator=(const LimitScope&) = delete;

 private:
  Account& account_;
};

// The peak of the calling thread's account starts again from what is held now.
void reset_cpu_peak();

// Freed by tensors, kept for reuse. Together with what is held, at most the highest that was ever
// held, a quarter of it and 64 MiB.
int64_t cached_cpu_bytes();
void release_cpu_cache();  // gives them back to the system

}  // namespace penstock::memory
