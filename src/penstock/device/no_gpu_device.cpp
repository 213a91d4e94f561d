#include "penstock/base/error.h"
#include "penstock/device/device.h"

namespace penstock::device {

Device open_gpu(const DeviceOptions&) {
  throw ConfigError(
      "run.device = \"cuda\", but this penstock was built without CUDA; use run.device = \"cpu\", "
      "or "
      "build with cmake --preset cuda (docs/gpu.md)");
}

void require_current(const Device&) {}

void set_timing(const Device&, bool) {}

}  // namespace penstock::device
