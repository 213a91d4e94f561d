#include "penstock/memory/gpu_rank_account.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "penstock/base/error.h"
#include "penstock/memory/gpu_account.h"
#include "penstock/memory/gpu_checked_allocator.h"
#include "penstock/memory/gpu_out_of_memory.h"

namespace penstock::memory {

namespace {

namespace cuda = c10::cuda::CUDACachingAllocator;
using Entry = c10::CachingDeviceAllocator::TraceEntry;

class GpuRankAccount;

// Of all ranks of this process. The allocator calls while it holds its own lock, so nothing here
// calls the allocator while it holds this one.
struct Books {
  struct Block {
    GpuRankAccount* account;
    int64_t bytes;
  };

  std::mutex mutex;
  // Held while the sum of the limits is read and given to the allocator, so that the last sum is
  // the one that holds. Taken before the other; what the allocator calls never takes it.
  std::mutex limit_mutex;
  std::vector<std::unique_ptr<GpuRankAccount>> accounts;
  std::unordered_map<void*, GpuRankAccount*> by_stream;  // of ranks that have not ended
  std::unordered_map<size_t, Block> blocks;              // by address

  void note(const Entry& entry);
};

// Never destroyed, as the allocator that calls it is not.
Books& books() {
  static auto* all = new Books;
  return *all;
}

using Lock = std::lock_guard<std::mutex>;

class GpuRankAccount final : public Account {
 public:
  GpuRankAccount(int device, void* stream) : device_(device), stream_(stream) {}

  Usage usage() const override {
    const Lock lock(books().mutex);
    return {current_, peak_};
  }
  Usage restart_peak() override {
    const Lock lock(books().mutex);
    const Usage before{current_, peak_};
    peak_ = current_;
    return before;
  }
  void raise_peak(int64_t bytes) override {
    const Lock lock(books().mutex);
    peak_ = std::max(peak_, bytes);
  }

  void set_limit(int64_t bytes) override {
    cuda::emptyCache();
    {
      const Lock lock(books().mutex);
      limit_ = bytes;
      peak_ = current_;
      reserved_peak_ = reserved_;
    }
    limit_device();
  }

  int64_t limit_bytes() const override {
    const Lock lock(books().mutex);
    return limit_;
  }
  bool is_cpu() const override { return false; }
  int64_t reserved_peak_bytes() const override {
    const Lock lock(books().mutex);
    return reserved_peak_;
  }

  // The limit of this rank is kept by refuse(); here it was that of all, or the device itself.
  [[noreturn]] void fail_out_of_memory(const char* what) const override {
    fail_gpu_out_of_memory(device_, limit_of_device(), what);
  }

  void close() {
    {
      const Lock lock(books().mutex);
      const auto found = books().by_stream.find(stream_);
      if (found != books().by_stream.end() && found->second == this) {
        books().by_stream.erase(found);
      }
    }
    limit_device();
  }

  void limit_device() const {
    const Lock lock(books().limit_mutex);
    const double limit = static_cast<double>(limit_of_device());
    const double whole = static_cast<double>(memory_of_device(device_).all);
    cuda::setMemoryFraction(limit == 0 ? 1.0 : std::min(1.0, limit / whole),
                            static_cast<c10::DeviceIndex>(device_));
  }

  // The rest is called under the books' lock.
  void add(int64_t bytes) {
    current_ += bytes;
    peak_ = std::max(peak_, current_);
  }
  void add_reserved(int64_t bytes) {
    reserved_ += bytes;
    reserved_peak_ = std::max(reserved_peak_, reserved_);
  }
  void refuse(int64_t asked) const {
    if (limit_ > 0 && current_ + asked > limit_) {
      throw LimitError(asked, current_, limit_);
    }
  }

 private:
  // The sum over the ranks that are there; 0 where one of them has none.
  int64_t limit_of_device() const {
    const Lock lock(books().mutex);
    int64_t sum = 0;
    for (const auto& [stream, account] : books().by_stream) {
      if (account->device_ == device_) {
        if (account->limit_ == 0) {
          return 0;
        }
        sum += account->limit_;
      }
    }
    return sum;
  }

  const int device_;
  void* const stream_;
  int64_t current_ = 0, peak_ = 0;
  int64_t reserved_ = 0, reserved_peak_ = 0;
  int64_t limit_ = 0;
};

void Books::note(const Entry& entry) {
  const Lock lock(mutex);
  if (entry.action_ == Entry::FREE_REQUESTED) {
    const auto found = blocks.find(entry.addr_);
    if (found != blocks.end()) {
      found->second.account->add(-found->second.bytes);
      blocks.erase(found);
    }
    return;
  }
  const auto found = by_stream.find(entry.stream_);
  if (found == by_stream.end()) {
    return;
  }
  const int64_t bytes = static_cast<int64_t>(entry.size_);
  switch (entry.action_) {
    case Entry::ALLOC: {
      const int64_t occupied = gpu_block_bytes(bytes);
      blocks[entry.addr_] = {found->second, occupied};
      found->second->add(occupied);
      break;
    }
    case Entry::SEGMENT_ALLOC:
    case Entry::SEGMENT_MAP:
      found->second->add_reserved(bytes);
      break;
    case Entry::SEGMENT_FREE:
    case Entry::SEGMENT_UNMAP:
      found->second->add_reserved(-bytes);
      break;
    default:
      break;
  }
}

void refuse_over_rank_limit(size_t bytes, void* stream) {
  const Lock lock(books().mutex);
  const auto found = books().by_stream.find(stream);
  if (found != books().by_stream.end()) {
    found->second->refuse(gpu_block_bytes(static_cast<int64_t>(bytes)));
  }
}

void watch_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // it knows its devices from then on
    cuda::attachAllocatorTraceTracker([](const Entry& entry) { books().note(entry); });
    install_checked_allocator(refuse_over_rank_limit);
  });
}

}  // namespace

Account& open_gpu_rank_account(int device, gpu::Stream compute) {
  watch_allocator();
  cuda::emptyCache();  // what another rank has left on this stream
  GpuRankAccount* account = nullptr;
  {
    const Lock lock(books().mutex);
    books().accounts.push_back(std::make_unique<GpuRankAccount>(device, compute));
    account = books().accounts.back().get();
    const bool is_new = books().by_stream.emplace(compute, account).second;
    PENSTOCK_CHECK(is_new, "two ranks compute on one stream of GPU ", device);
  }
  account->limit_device();
  return *account;
}

void close_gpu_rank_account(Account& account) {
  static_cast<GpuRankAccount&>(account).close();
}

}  // namespace penstock::memory
