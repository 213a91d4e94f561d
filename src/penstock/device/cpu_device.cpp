#include "penstock/device/device.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/memory/gpu_account.h"

namespace penstock::device {

memory::Account& Device::account() const {
  if (own_account != nullptr) {
    return *own_account;
  }
  return is_gpu() ? memory::gpu_account(where.index()) : memory::process_account();
}

Device open_cpu() {
  return {};
}

}  // namespace penstock::device
