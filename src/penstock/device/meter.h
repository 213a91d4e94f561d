// What a device says of itself while it works: energy, clock, and the time of each kernel.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/device/device.h"

namespace penstock::device {

struct KernelTime {
  std::string name;
  int64_t count = 0;
  double seconds = 0;  // all of them together
};

struct Trace {
  std::vector<KernelTime> kernels;  // the most time first
  double busy_s = 0;                // in which the device worked
  double span_s = 0;                // from the first start to the last end
};

class Meter {
 public:
  virtual ~Meter() = default;

  virtual std::optional<double> joules() const = 0;  // since some moment in the past
  virtual std::optional<double> clock_mhz() const = 0;
  virtual std::string name() const = 0;

  // Costs the host a little at each launch, also afterwards: trace last.
  virtual void begin_trace() = 0;
  virtual Trace end_trace() = 0;
};

// Nothing on the CPU.
std::unique_ptr<Meter> open_meter(const Device& device);

}  // namespace penstock::device
