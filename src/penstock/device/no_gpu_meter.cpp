#include "penstock/device/meter.h"

namespace penstock::device {

std::unique_ptr<Meter> open_meter(const Device&) {
  return nullptr;
}

}  // namespace penstock::device
