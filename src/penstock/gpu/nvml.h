// The GPU's own meters through NVML: energy, power, clock, memory, and who computes on it. The
// library is opened when the program runs, so a machine without a driver can have the program too.
//
// Joules are the meter to trust for a window of several seconds: the counter advances in the driver
// all the time, while watts and the clock are samples.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::gpu {

struct GpuMemory {
  int64_t total_bytes = 0;
  int64_t used_bytes = 0;  // by all processes and the driver
  int64_t free_bytes = 0;
};

struct GpuProcess {
  int64_t pid = 0;                    // as the machine counts; in a container not that of getpid()
  std::optional<int64_t> used_bytes;  // nothing where the driver does not tell
};

class PowerMeter {
 public:
  // `device` as CUDA counts. Nothing when there is no NVML or it does not know the device;
  // `why_not` then gets a line that says so. Never throws.
  static std::optional<PowerMeter> open(int device, std::string* why_not = nullptr) noexcept;

  PowerMeter(PowerMeter&&) noexcept;
  PowerMeter& operator=(PowerMeter&&) noexcept;
  ~PowerMeter();

  // Each is nothing where the GPU does not support it.
  std::optional<double> joules() const;  // since the driver was loaded
  std::optional<double> watts() const;
  std::optional<double> clock_mhz() const;  // of the multiprocessors
  std::optional<GpuMemory> memory() const;
  std::optional<std::string> name() const;

  // All that compute on the GPU now, this process among them. In a container the list may be
  // empty, or in the numbers of the machine.
  std::optional<std::vector<GpuProcess>> processes() const;

 private:
  struct Library;
  PowerMeter(std::unique_ptr<Library> library, void* device);

  std::unique_ptr<Library> library_;
  void* device_ = nullptr;  // nvmlDevice_t, which the library owns
};

}  // namespace penstock::gpu
