#include "penstock/memory/cpu_allocator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <sys/mman.h>
#include <vector>

#include <malloc.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Device.h>

#include "penstock/base/error.h"

namespace penstock::memory {

namespace {

// Its numbers are guarded by the allocator's mutex.
class CpuAccount final : public Account {
 public:
  Usage usage() const override;
  Usage restart_peak() override;
  void raise_peak(int64_t bytes) override;
  void set_limit(int64_t bytes) override;
  int64_t limit_bytes() const override;
  bool is_cpu() const override { return true; }
  int64_t reserved_peak_bytes() const override { return usage().peak_bytes; }
  [[noreturn]] void fail_out_of_memory(const char* what) const override {
    throw InternalError(what);
  }

  int64_t current = 0;
  int64_t peak = 0;
  int64_t limit = 0;  // 0: none
};

// Who pays for a CPU tensor made now: with a GPU's account in force, the process.
CpuAccount& paying_account() {
  Account& account = current_account();
  return static_cast<CpuAccount&>(account.is_cpu() ? account : process_account());
}

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
  CpuAccount* account;
};

size_t block_size(size_t requested) {
  const size_t unit = requested >= kLeastCached ? 4096 : kAlignment;
  return (requested + kHeader + unit - 1) / unit * unit;
}

// Pages of their own, which are the system's again as soon as they are freed: malloc would keep some.
void* map_block(size_t bytes) {
  const size_t alignment = bytes >= 2 * kHugePage ? kHugePage : 0;
  void* const mapped = ::mmap(
      nullptr, bytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw std::bad_alloc();
  }
  if (alignment == 0) {
    return mapped;
  }
  char* const begin = static_cast<char*>(mapped);
  const size_t before = (alignment - reinterpret_cast<uintptr_t>(begin) % alignment) % alignment;
  char* const block = begin + before;
  if (before > 0) {
    ::munmap(begin, before);
  }
  if (before < alignment) {
    ::munmap(block + bytes, alignment - before);
  }
  ::madvise(block, bytes, MADV_HUGEPAGE);  // advice: where it is refused, small pages serve
  return block;
}

void* make_block(size_t bytes) {
  if (bytes >= kLeastCached) {
    return map_block(bytes);
  }
  void* block = nullptr;
  if (::posix_memalign(&block, kAlignment, bytes) != 0) {
    throw std::bad_alloc();
  }
  return block;
}

void free_block(void* block, size_t bytes) {
  if (bytes >= kLeastCached) {
    ::munmap(block, bytes);
  } else {
    std::free(block);
  }
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t requested) override {
    if (requested == 0) {
      return {nullptr, nullptr, &free_data, c10::Device(c10::DeviceType::CPU)};
    }
    const size_t bytes = block_size(requested);
    CpuAccount& account = paying_account();
    char* block = static_cast<char*>(take(account, requested, bytes));
    *reinterpret_cast<Header*>(block) = {requested, bytes, &account};
    void* data = block + kHeader;
    return {data, data, &free_data, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_data; }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }

  std::mutex& mutex() { return mutex_; }

  int64_t cached() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(cached_);
  }

  void release_cache() {
    const std::lock_guard<std::mutex> lock(mutex_);
    shrink_cache(0);
    highest_ = current_;
  }

  void give(void* data) {
    void* block = static_cast<char*>(data) - kHeader;
    const Header header = *static_cast<const Header*>(block);
    const std::lock_guard<std::mutex> lock(mutex_);
    current_ -= header.requested;
    header.account->current -= static_cast<int64_t>(header.requested);
    if (header.block < kLeastCached) {
      free_block(block, header.block);
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

  void* take(CpuAccount& account, size_t requested, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t held_after = account.current + static_cast<int64_t>(requested);
    if (account.limit > 0 && held_after > account.limit) {
      throw LimitError(static_cast<int64_t>(requested), account.current, account.limit);
    }
    void* block = reuse(bytes);
    if (block == nullptr) {
      // What is held and what is cached together stay near the highest that was ever held; under a limit,
      // which people set where RAM is short, they stay at it.
      const size_t held = current_ + requested;
      const size_t highest = std::max(highest_, held);
      const size_t allowed = account.limit > 0 ? highest : highest / 4 * 5 + kCacheSlack;
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
      free_block(largest->second.back(), largest->first);
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

using Lock = std::lock_guard<std::mutex>;

Usage CpuAccount::usage() const {
  const Lock lock(CpuAllocator::instance().mutex());
  return {current, peak};
}

Usage CpuAccount::restart_peak() {
  const Lock lock(CpuAllocator::instance().mutex());
  const Usage before{current, peak};
  peak = current;
  return before;
}

void CpuAccount::raise_peak(int64_t bytes) {
  const Lock lock(CpuAllocator::instance().mutex());
  peak = std::max(peak, bytes);
}

void CpuAccount::set_limit(int64_t bytes) {
  const Lock lock(CpuAllocator::instance().mutex());
  limit = bytes;
}

int64_t CpuAccount::limit_bytes() const {
  const Lock lock(CpuAllocator::instance().mutex());
  return limit;
}

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
  static CpuAccount* account = new CpuAccount;
  return *account;
}

Account& make_account() {
  return *new CpuAccount;
}

int64_t cached_cpu_bytes() {
  return CpuAllocator::instance().cached();
}

void release_unused() {
  release_cpu_cache();
  ::malloc_trim(0);
}

void release_cpu_cache() {
  CpuAllocator::instance().release_cache();
}

}  // namespace penstock::memory
