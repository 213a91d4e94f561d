#include "penstock/base/error.h"
#include "penstock/comm/nccl.h"

namespace penstock::comm {

void require_nccl() {
  throw ConfigError(
      "run.links = \"nccl\", but this penstock was built without NCCL; build it where CMake finds "
      "NCCL (docs/gpu.md), or try run.links = \"auto\"");
}

std::unique_ptr<GpuLink> connect_gpus(Group&, int32_t, int32_t, int64_t) {
  throw InternalError("a link between GPUs in a build without NCCL");
}

}  // namespace penstock::comm
