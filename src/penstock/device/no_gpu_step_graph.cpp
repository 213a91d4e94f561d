#include "penstock/device/step_graph.h"

namespace penstock::device {

std::unique_ptr<StepGraph> make_step_graph(const Device&) {
  return nullptr;
}

}  // namespace penstock::device
