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

namespace penstock::memory {

namespace {

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
    char* block = static_cast<char*>(take(requested, bytes));
    *reinterpret_cast<Header*>(block) = {requested, bytes};
    void* data = block + kHeader;
    return {data, data, &free_data, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_data; }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }

  CpuUsage usage() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {
        static_cast<int64_t>(current_), static_cast<int64_t>(peak_), static_cast<int64_t>(cached_)};
  }

  void reset_peak() {
    const std::lock_guard<std::mutex> lock(mutex_);
    peak_ = current_;
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

  void* take(size_t requested, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
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
    peak_ = std::max(peak_, current_);
    highest_ = std::max(highest_, current_);
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
  size_t current_ = 0;
  size_t peak_ = 0;
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

CpuUsage cpu_usage() {
  return CpuAllocator::instance().usage();
}

void reset_cpu_peak() {
  CpuAllocator::instance().reset_peak();
}

void release_cpu_cache() {
  CpuAllocator::instance().release_cache();
}

}  // namespace penstock::memory
