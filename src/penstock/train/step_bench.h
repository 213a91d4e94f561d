// A training step to be timed: the model of a recipe on random tokens, planned and run as in
// training, without data, checkpoints or logs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/device/meter.h"
#include "penstock/program/simulate.h"

namespace penstock::train {

struct Planned;

struct Window {
  int64_t steps = 0;
  double seconds = 0;
  double loss = 0;  // of the last step
  std::optional<double> joules, clock_mhz;
};

class StepBench {
 public:
  // Throws Error (exit code 1) when the step does not fit in the recipe's limit.
  StepBench(const config::Recipe& recipe, bool predicts);
  ~StepBench();

  // Steps until `seconds` have passed, at least one.
  Window run(double seconds);
  device::Trace trace(int64_t steps);  // GPU alone

  const Planned& planned() const;
  const program::Timeline& measured() const;        // the last step
  const std::vector<double>& first_losses() const;  // of up to 8 steps
  int64_t peak_bytes() const;                       // of the steps, not of planning
  int64_t reserved_peak_bytes() const;              // what the device's allocator took for them
  std::string device_name() const;
  const device::Meter* meter() const;  // null on the CPU

 private:
  struct Parts;
  double step();

  std::unique_ptr<Parts> parts_;
};

}  // namespace penstock::train
