#include "penstock/memory/gpu_account.h"

#include <algorithm>
#include <array>
#include <memory>

#include <c10/cuda/CUDACachingAllocator.h>

#include "penstock/memory/gpu_out_of_memory.h"

namespace penstock::memory {

namespace {

namespace cuda = c10::cuda::CUDACachingAllocator;

class GpuAccount final : public Account {
 public:
  explicit GpuAccount(int device) : device_(static_cast<c10::DeviceIndex>(device)) {}

  Usage usage() const override {
    const auto stats = cuda::getDeviceStats(device_);
    const auto& bytes = stats.allocated_bytes[0];  // of all its pools together
    return {bytes.current, std::max(bytes.peak, raised_)};
  }

  Usage restart_peak() override {
    const Usage before = usage();
    reserved_peak_ = reserved_peak_bytes();
    cuda::resetPeakStats(device_);
    raised_ = 0;
    return before;
  }

  void raise_peak(int64_t bytes) override { raised_ = std::max(raised_, bytes); }

  void set_limit(int64_t bytes) override {
    limit_ = bytes;
    raised_ = 0;
    const double whole = static_cast<double>(memory_of_device(device_).all);
    cuda::emptyCache();
    reserved_peak_ = 0;
    cuda::resetPeakStats(device_);
    cuda::setMemoryFraction(bytes == 0 ? 1.0 : std::min(1.0, static_cast<double>(bytes) / whole),
                            device_);
  }

  void release_cache() override { cuda::emptyCache(); }
  int64_t limit_bytes() const override { return limit_; }
  bool is_cpu() const override { return false; }
  int64_t reserved_peak_bytes() const override {
    return std::max(reserved_peak_, cuda::getDeviceStats(device_).reserved_bytes[0].peak);
  }

  [[noreturn]] void fail_out_of_memory(const char* what) const override {
    fail_gpu_out_of_memory(device_, limit_, what);
  }

 private:
  c10::DeviceIndex device_;
  int64_t limit_ = 0;
  int64_t raised_ = 0;  // a peak from before the last restart
  int64_t reserved_peak_ = 0;
};

}  // namespace

Account& gpu_account(int device) {
  // Never destroyed: tensors of static objects may outlive it. Made at once, for any thread may
  // ask.
  static const auto* accounts = [] {
    auto* all = new std::array<std::unique_ptr<GpuAccount>, 64>;
    for (size_t i = 0; i < all->size(); ++i) {
      (*all)[i] = std::make_unique<GpuAccount>(static_cast<int>(i));
    }
    return all;
  }();
  return *accounts->at(static_cast<size_t>(device));
}

}  // namespace penstock::memory
