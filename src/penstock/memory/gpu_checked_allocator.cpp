#include "penstock/memory/gpu_checked_allocator.h"

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

namespace penstock::memory {

namespace {

namespace cuda = c10::cuda::CUDACachingAllocator;
namespace caching = c10::CachingDeviceAllocator;

// Every call goes to LibTorch's; those that allocate are checked first. Blocks keep LibTorch's
// deleter, by which it knows them.
class CheckedAllocator final : public cuda::CUDAAllocator {
 public:
  CheckedAllocator(cuda::CUDAAllocator& inner, AllocationCheck check)
      : inner_(inner), check_(check) {}

  c10::DataPtr allocate(size_t bytes) override {
    check_current(bytes);
    return inner_.allocate(bytes);
  }
  void* raw_alloc(size_t bytes) override {
    check_current(bytes);
    return inner_.raw_alloc(bytes);
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    check_(bytes, stream);
    return inner_.raw_alloc_with_stream(bytes, stream);
  }

  void raw_delete(void* pointer) override { inner_.raw_delete(pointer); }
  c10::DeleterFnPtr raw_deleter() const override { return inner_.raw_deleter(); }
  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return inner_.is_simple_data_ptr(pointer);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_.copy_data(to, from, bytes);
  }

  void init(int device_count) override { inner_.init(device_count); }
  bool initialized() override { return inner_.initialized(); }
  void enable(bool value) override { inner_.enable(value); }
  bool isEnabled() const override { return inner_.isEnabled(); }
  std::string name() override { return inner_.name(); }

  double getMemoryFraction(c10::DeviceIndex device) override {
    return inner_.getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    inner_.setMemoryFraction(fraction, device);
  }
  void emptyCache(c10::MempoolId_t pool) override { inner_.emptyCache(pool); }
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    inner_.cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* pointer, size_t* size) override {
    return inner_.getBaseAllocation(pointer, size);
  }
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
    inner_.recordStream(pointer, stream);
  }
  std::vector<cuda::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return inner_.getExpandableSegmentSizes(device);
  }

  caching::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return inner_.getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    inner_.resetAccumulatedStats(device);
  }
  void resetPeakStats(c10::DeviceIndex device) override { inner_.resetPeakStats(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return inner_.getMemoryInfo(device);
  }
  cuda::SnapshotInfo snapshot(c10::MempoolId_t pool, bool include_traces) override {
    return inner_.snapshot(pool, include_traces);
  }

  // Pools of recorded graphs.
  void beginAllocateToPool(c10::DeviceIndex device,
                           c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    inner_.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    inner_.endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    inner_.releasePool(device, pool);
  }
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return inner_.getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(c10::DeviceIndex device,
                          c10::MempoolId_t pool,
                          std::shared_ptr<cuda::CUDAAllocator> allocator) override {
    inner_.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) override {
    inner_.setUseOnOOM(device, pool, use);
  }
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    inner_.setNoSplit(device, pool);
  }
  bool checkPoolLiveAllocations(c10::DeviceIndex device,
                                c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return inner_.checkPoolLiveAllocations(device, pool, expected);
  }
  std::shared_ptr<cuda::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                           c10::MempoolId_t pool) override {
    return inner_.getCheckpointState(device, pool);
  }
  cuda::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<cuda::AllocatorState> state) override {
    return inner_.setCheckpointPoolState(device, std::move(state));
  }

  // Between devices and processes.
  cuda::ShareableHandle shareIpcHandle(void* pointer) override {
    return inner_.shareIpcHandle(pointer);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return inner_.getIpcDevPtr(std::move(handle));
  }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) override {
    inner_.enablePeerAccess(device, other);
  }
  cudaError_t memcpyAsync(void* to,
                          int to_device,
                          const void* from,
                          int from_device,
                          size_t bytes,
                          cudaStream_t stream,
                          bool has_peer_access) override {
    return inner_.memcpyAsync(to, to_device, from, from_device, bytes, stream, has_peer_access);
  }

  // Traces.
  bool isHistoryEnabled() override { return inner_.isHistoryEnabled(); }
  void recordHistory(bool is_on,
                     caching::CreateContextFn recorder,
                     size_t most_entries,
                     caching::RecordContext when,
                     bool clears,
                     const std::vector<std::string>& skipped) override {
    inner_.recordHistory(is_on, recorder, most_entries, when, clears, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override {
    inner_.recordAnnotation(pairs);
  }
  void pushCompileContext(std::string& text) override { inner_.pushCompileContext(text); }
  void popCompileContext() override { inner_.popCompileContext(); }
  void setUserMetadata(const std::string& text) override { inner_.setUserMetadata(text); }
  std::string getUserMetadata() override { return inner_.getUserMetadata(); }
  void attachOutOfMemoryObserver(cuda::OutOfMemoryObserver observer) override {
    inner_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    inner_.attachAllocatorTraceTracker(std::move(tracker));
  }

 private:
  void check_current(size_t bytes) const {
    if (bytes > 0) {
      check_(bytes, c10::cuda::getCurrentCUDAStream().stream());
    }
  }

  cuda::CUDAAllocator& inner_;
  const AllocationCheck check_;
};

}  // namespace

void install_checked_allocator(AllocationCheck check) {
  // Never destroyed: tensors of static objects may ask it to their end.
  cuda::allocator.store(new CheckedAllocator(*cuda::get(), check));
}

}  // namespace penstock::memory
