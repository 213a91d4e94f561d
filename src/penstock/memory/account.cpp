#include "penstock/memory/account.h"

#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/memory/cpu_allocator.h"

namespace penstock::memory {

namespace {

thread_local Account* thread_account = nullptr;
Account* whole_process = nullptr;

}  // namespace

Account& current_account() {
  if (thread_account != nullptr) {
    return *thread_account;
  }
  return whole_process == nullptr ? process_account() : *whole_process;
}

void set_process_account(Account& account) {
  whole_process = &account;
}

AccountScope::AccountScope(Account& account) : before_(thread_account) {
  thread_account = &account;
}

AccountScope::~AccountScope() {
  thread_account = before_;
}

PeakMark::PeakMark(Account& account) : account_(account) {
  const Usage before = account.restart_peak();
  start_bytes_ = before.current_bytes;
  outer_peak_ = before.peak_bytes;
}

PeakMark::~PeakMark() {
  account_.raise_peak(outer_peak_);
}

LimitError::LimitError(int64_t asked, int64_t held, int64_t limit)
    : OutOfMemory(cat("an allocation of ",
                      format_count(asked),
                      " bytes with ",
                      format_count(held),
                      " held would go over the limit of ",
                      format_count(limit))),
      asked_(asked),
      held_(held),
      limit_(limit) {}

LimitScope::~LimitScope() {
  try {
    account_.set_limit(0);
  } catch (const std::exception& error) {
    log_warning("while a memory limit was lifted: ", error.what());  // a device that has failed
  }
}

}  // namespace penstock::memory
