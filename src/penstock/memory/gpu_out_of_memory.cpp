#include "penstock/memory/gpu_out_of_memory.h"

#include <algorithm>
#include <string>

#include <cuda_runtime_api.h>

#include <c10/cuda/CUDACachingAllocator.h>

#include "penstock/base/units.h"
#include "penstock/gpu/check.h"
#include "penstock/memory/account.h"

namespace penstock::memory {

namespace {

std::string first_line(const char* what) {
  const std::string text(what);
  const std::string sentence = text.substr(0, text.find('\n'));
  const size_t asked = sentence.find("Tried to allocate");
  const size_t end = sentence.find(". ", asked == std::string::npos ? 0 : asked);
  return asked == std::string::npos ? sentence : sentence.substr(asked, end - asked);
}

// As the allocator words it: "Tried to allocate 384.00 MiB". It says no more than these digits.
int64_t asked_bytes(const char* what) {
  const std::string text = first_line(what);
  const size_t digits = text.find_first_of("0123456789");
  std::string amount = digits == std::string::npos ? "" : text.substr(digits);
  amount.erase(std::remove(amount.begin(), amount.end(), ' '), amount.end());
  return parse_bytes(amount).value_or(1);
}

}  // namespace

DeviceMemory memory_of_device(int device) {
  size_t free_bytes = 0, all_bytes = 0;
  PENSTOCK_CUDA(cudaSetDevice(device));
  PENSTOCK_CUDA(cudaMemGetInfo(&free_bytes, &all_bytes));
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(all_bytes)};
}

void fail_gpu_out_of_memory(int device, int64_t limit_bytes, const char* what) {
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
  const int64_t held = stats.allocated_bytes[0].current;
  const int64_t reserved = stats.reserved_bytes[0].current;
  const DeviceMemory memory = memory_of_device(device);
  // The limit is why when the device itself has more to give than the limit leaves.
  if (limit_bytes > 0 && limit_bytes - reserved < memory.free) {
    throw LimitError(asked_bytes(what),
                     held,
                     limit_bytes,
                     cat("an allocation with ",
                         format_count(held),
                         " bytes held and ",
                         format_count(reserved),
                         " taken from the GPU would go over the limit of ",
                         format_count(limit_bytes),
                         " (",
                         first_line(what),
                         ")"));
  }
  const int64_t others = std::max<int64_t>(0, memory.all - memory.free - reserved);
  throw OutOfMemory(cat("GPU ",
                        device,
                        " is out of memory: of its ",
                        format_bytes(memory.all),
                        " this run holds ",
                        format_bytes(held),
                        " and ",
                        format_bytes(others),
                        " are taken by other programs and the driver, ",
                        format_bytes(memory.free),
                        " are free; end the other programs (nvidia-smi lists them), or give "
                        "plan.memory a limit that fits beside them (",
                        first_line(what),
                        ")"));
}

}  // namespace penstock::memory
