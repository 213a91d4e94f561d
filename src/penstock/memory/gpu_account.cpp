#include "penstock/memory/gpu_account.h"

#include <algorithm>
#include <array>
#include <memory>

#include <cuda_runtime_api.h>

#include <c10/cuda/CUDACachingAllocator.h>

#include "penstock/base/units.h"
#include "penstock/gpu/check.h"

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
    const double whole = static_cast<double>(memory_of_device().all);
    cuda::emptyCache();
    reserved_peak_ = 0;
    cuda::resetPeakStats(device_);
    cuda::setMemoryFraction(bytes == 0 ? 1.0 : std::min(1.0, static_cast<double>(bytes) / whole),
                            device_);
  }

  int64_t limit_bytes() const override { return limit_; }
  bool is_cpu() const override { return false; }
  int64_t reserved_peak_bytes() const override {
    return std::max(reserved_peak_, cuda::getDeviceStats(device_).reserved_bytes[0].peak);
  }

  [[noreturn]] void fail_out_of_memory(const char* what) const override {
    const auto stats = cuda::getDeviceStats(device_);
    const int64_t held = stats.allocated_bytes[0].current;
    const int64_t reserved = stats.reserved_bytes[0].current;
    const DeviceMemory memory = memory_of_device();
    // The limit is why when the device itself has more to give than the limit leaves.
    if (limit_ > 0 && limit_ - reserved < memory.free) {
      throw LimitError(asked_bytes(what),
                       held,
                       limit_,
                       cat("an allocation with ",
                           format_count(held),
                           " bytes held and ",
                           format_count(reserved),
                           " taken from the GPU would go over the limit of ",
                           format_count(limit_),
                           " (",
                           first_line(what),
                           ")"));
    }
    const int64_t others = std::max<int64_t>(0, memory.all - memory.free - reserved);
    throw OutOfMemory(
        cat("GPU ",
            static_cast<int>(device_),
            " is out of memory: of its ",
            format_bytes(memory.all),
            " this run holds ",
            format_bytes(held),
            " and ",
            format_bytes(others),
            " are taken by other programs and the driver, ",
            format_bytes(memory.free),
            " are free; end the other programs (nvidia-smi lists them), or give plan.memory "
            "a limit that fits beside them (",
            first_line(what),
            ")"));
  }

 private:
  struct DeviceMemory {
    int64_t free, all;
  };
  DeviceMemory memory_of_device() const {
    size_t free_bytes = 0, all_bytes = 0;
    PENSTOCK_CUDA(cudaSetDevice(device_));
    PENSTOCK_CUDA(cudaMemGetInfo(&free_bytes, &all_bytes));
    return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(all_bytes)};
  }

  // As the allocator words it: "Tried to allocate 384.00 MiB". It says no more than these digits.
  static int64_t asked_bytes(const char* what) {
    const std::string text = first_line(what);
    const size_t digits = text.find_first_of("0123456789");
    std::string amount = digits == std::string::npos ? "" : text.substr(digits);
    amount.erase(std::remove(amount.begin(), amount.end(), ' '), amount.end());
    return parse_bytes(amount).value_or(1);
  }

  static std::string first_line(const char* what) {
    const std::string text(what);
    const std::string sentence = text.substr(0, text.find('\n'));
    const size_t asked = sentence.find("Tried to allocate");
    const size_t end = sentence.find(". ", asked == std::string::npos ? 0 : asked);
    return asked == std::string::npos ? sentence : sentence.substr(asked, end - asked);
  }

  c10::DeviceIndex device_;
  int64_t limit_ = 0;
  int64_t raised_ = 0;  // a peak from before the last restart
  int64_t reserved_peak_ = 0;
};

}  // namespace

Account& gpu_account(int device) {
  // Never destroyed: tensors of static objects may outlive it.
  static auto* accounts = new std::array<std::unique_ptr<GpuAccount>, 64>;
  auto& account = accounts->at(static_cast<size_t>(device));
  if (!account) {
    account = std::make_unique<GpuAccount>(device);
  }
  return *account;
}

}  // namespace penstock::memory
