#include "penstock/memory/cpu_allocator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <sys/mman.h>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Device.h>

#include "penstock/base/units.h"

namespace penstock::memory {

// Guarded by the allocator's mutex.
class Account {
 public:
  int64_t current = 0;
  int64_t peak = 0;
  int64_t limit = 0;  // 0: none
};

namespace {

thread_local Account* thread_account = nullptr;

// The size stands in front of the block, not in a context: oneDNN's paths need the context to be
// the data pointer.
constexpr size_t kAlignment = 64;
constexpr size_t kHeader = kAlignment;
constexpr size_t kLeastCached = size_t{64} << 10;  // below this malloc is as fast
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kCacheSlack = size_t{64} << 20;

struct Header {
  size_t requested;
  size_t block;  // bytes of the whole block, header included
  Account* account;
};

size_t block_size(size_t requested) {
  const size_t unit = requested >= kLeastCached ? 4096 : kAlignment;
  return (requested + kHeader + unit - 1) / unit * unit;
}

void* make_block(size_t bytes) {
  void* block = nullptr;
  const bool is_huge = bytes >= 2 * kHugePage;
  if (::posix_memalign(&block, is_huge ? kHugePage : kAlignment, bytes) != 0) {
    throw std::bad_alloc();
  }
  if (is_huge) {
    ::madvise(block, bytes, MADV_HUGEPAGE);  // advice: where it is refused, small pages serve
  }
  return block;
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t requested) override {
    if (requested == 0) {
      return {nullptr, nullptr, &free_data, c10::Device(c10::DeviceType::CPU)};
    }
    const size_t bytes = block_size(requested);
    Account& account = current_account();
    char* block = static_cast<char*>(take(account, requested, bytes));
    *reinterpret_cast<Header*>(block) = {requested, bytes, &account};
    void* data = block + kHeader;
    return {data, data, &free_data, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_data; }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }

  CpuUsage usage(const Account& account) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {account.current, account.peak};
  }

  // Counts the peak from now on; the answer is what it was and what the account holds.
  CpuUsage restart_peak(Account& account) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const CpuUsage before{account.current, account.peak};
    account.peak = account.current;
    return before;
  }

  void raise_peak(Account& account, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    account.peak = std::max(account.peak, bytes);
  }

  void set_limit(Account& account, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    account.limit = bytes;
  }

  int64_t cached() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(cached_);
  }

  void release_cache() {
    const std::lock_guard<std::mutex> lock(mutex_);
    shrink_cache(0);
  }

  void give(void* data) {
    void* block = static_cast<char*>(data) - kHeader;
    const Header header = *static_cast<const Header*>(block);
    const std::lock_guard<std::mutex> lock(mutex_);
    current_ -= header.requested;
    header.account->current -= static_cast<int64_t>(header.requested);
    if (header.block < kLeastCached) {
      std::free(block);
      return;
    }
    free_[header.block].push_back(block);
    cached_ += header.block;
  }

  static CpuAllocator& instance() {
    // Never destroyed: tensors of other static objects may outlive it.
    static CpuAllocator* allocator = new CpuAllocator;
    return *allocator;
  }

 private:
  static void free_data(void* data) {
    if (data != nullptr) {
      instance().give(data);
    }
  }

  void* take(Account& account, size_t requested, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t held_after = account.current + static_cast<int64_t>(requested);
    if (account.limit > 0 && held_after > account.limit) {
      throw LimitError(static_cast<int64_t>(requested), account.current, account.limit);
    }
    void* block = reuse(bytes);
    if (block == nullptr) {
      // What is held and what is cached together stay near the highest that was ever held.
      const size_t held = current_ + requested;
      const size_t allowed = std::max(highest_, held) / 4 * 5 + kCacheSlack;
      shrink_cache(allowed > held ? allowed - held : 0);
      try {
        block = make_block(bytes);
      } catch (const std::bad_alloc&) {
        shrink_cache(0);
        block = make_block(bytes);
      }
    }
    current_ += requested;
    highest_ = std::max(highest_, current_);
    account.current = held_after;
    account.peak = std::max(account.peak, held_after);
    return block;
  }

  void* reuse(size_t bytes) {
    const auto found = free_.find(bytes);
    if (found == free_.end()) {
      return nullptr;
    }
    void* block = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) {
      free_.erase(found);
    }
    cached_ -= bytes;
    return block;
  }

  // Largest first: few frees, and large blocks are the least likely to be asked for again by
  // another size.
  void shrink_cache(size_t most) {
    while (cached_ > most) {
      const auto largest = std::prev(free_.end());
      std::free(largest->second.back());
      largest->second.pop_back();
      cached_ -= largest->first;
      if (largest->second.empty()) {
        free_.erase(largest);
      }
    }
  }

  std::mutex mutex_;  // guards all below; held for a look-up, never across a call to LibTorch
  std::map<size_t, std::vector<void*>> free_;
  size_t current_ = 0;  // of all accounts
  size_t highest_ = 0;
  size_t cached_ = 0;
};

}  // namespace

bool is_cpu_allocator_installed() {
  return c10::GetCPUAllocator() == &CpuAllocator::instance();
}

void install_cpu_allocator() {
  static const bool installed = [] {
    c10::SetCPUAllocator(&CpuAllocator::instance(), /*priority=*/100);
    return true;
  }();
  static_cast<void>(installed);
}

Account& process_account() {
  static Account* account = new Account;
  return *account;
}

Account& make_account() {
  return *new Account;
}

Account& current_account() {
  return thread_account == nullptr ? process_account() : *thread_account;
}

AccountScope::AccountScope(Account& account) : before_(current_account()) {
  thread_account = &account;
}

AccountScope::~AccountScope() {
  thread_account = &before_;
}

CpuUsage usage(const Account& account) {
  return CpuAllocator::instance().usage(account);
}

PeakMark::PeakMark(Account& account) : account_(account) {
  const CpuUsage before = CpuAllocator::instance().restart_peak(account);
  start_bytes_ = before.current_bytes;
  outer_peak_ = before.peak_bytes;
}

PeakMark::~PeakMark() {
  CpuAllocator::instance().raise_peak(account_, outer_peak_);
}

int64_t PeakMark::peak_bytes() const {
  return usage(account_).peak_bytes;
}

LimitError::LimitError(int64_t asked, int64_t held, int64_t limit)
    : Error(ExitCode::Negative,
            cat("an allocation of ",
                format_count(asked),
                " bytes with ",
                format_count(held),
                " held would go over the limit of ",
                format_count(limit))),
      asked_(asked),
      held_(held),
      limit_(limit) {}

void set_limit(Account& account, int64_t bytes) {
  CpuAllocator::instance().set_limit(account, bytes);
}

void reset_cpu_peak() {
  CpuAllocator::instance().restart_peak(current_account());
}

int64_t cached_cpu_bytes() {
  return CpuAllocator::instance().cached();
}

void release_cpu_cache() {
  CpuAllocator::instance().release_cache();
}

}  // namespace penstock::memory
