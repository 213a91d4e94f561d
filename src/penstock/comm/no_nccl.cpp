#include "penstock/comm/nccl.h"

namespace penstock::comm {

bool has_nccl() {
  return false;
}

std::unique_ptr<CardLink> connect_cards(Group&, int32_t, int32_t, int64_t) {
  throw InternalError("a link between GPUs in a build without NCCL");
}

}  // namespace penstock::comm
