// A recorded piece of a device's work that can be repeated with one launch (a CUDA graph): the host
// then does nothing per kernel, and the device starts one kernel right after the other.
#pragma once

#include <memory>

#include "penstock/device/device.h"

namespace penstock::device {

class StepGraph {
 public:
  virtual ~StepGraph() = default;

  // Between these the device's work is recorded, not done. What it allocates comes from memory of
  // its own, which stays reserved until the graph is destroyed. An exception between them must be
  // followed by destruction.
  virtual void begin() = 0;
  virtual void end() = 0;

  // Does it all once, in the order of the compute stream.
  virtual void replay() = 0;
};

// Nothing on the CPU.
std::unique_ptr<StepGraph> make_step_graph(const Device& device);

}  // namespace penstock::device
