// Where a rank computes: the CPU or one GPU.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include <c10/core/Device.h>

namespace penstock::memory {
class Account;
}

namespace penstock::device {

class GpuContext;

struct DeviceOptions {
  bool is_deterministic = false;  // GPU: the same bits every time
  bool allows_tf32 = false;       // GPU: GEMMs of float32 may be rounded to TF32
  // GPU: which of those that this process sees, modulo their number.
  int32_t index = 0;
  // GPU: other threads of this process are ranks too and may compute on the same one.
  bool is_one_of_several = false;
  // GPU: ranks are processes with a GPU each, and NCCL takes the tensors of a step from one to
  // another.
  bool uses_nccl = false;
};

struct Device {
  c10::Device where{c10::DeviceType::CPU};
  std::shared_ptr<GpuContext> gpu;         // nothing on the CPU
  memory::Account* own_account = nullptr;  // GPU: where it is one of several ranks
  int64_t most_micro_batches = std::numeric_limits<int64_t>::max();  // whose losses it has room for

  bool is_gpu() const { return gpu != nullptr; }
  memory::Account& account() const;
};

Device open_cpu();

// Makes its compute stream the calling thread's current one: each rank calls it in its own thread.
// Throws ConfigError in one line where this build has no CUDA, or the machine no usable GPU.
Device open_gpu(const DeviceOptions& options);

// Throws InternalError where the calling thread's LibTorch works on another stream than the
// device's compute stream: the two would race.
void require_current(const Device& device);

// While on, algorithms are chosen by timing them: for the time before training, when nothing of
// value is in the gradients. Does nothing on the CPU, or where results must be the same every time.
void set_timing(const Device& device, bool is_on);

}  // namespace penstock::device
