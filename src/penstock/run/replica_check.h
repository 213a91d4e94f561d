// Whether replicas still have the same weights and state: what they have alike is hashed and compared. Bits
// that memory or a link has flipped would otherwise spread unseen, into checkpoints too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/comm/group.h"

namespace penstock::model {
class Parameters;
}
namespace penstock::run {

// Something that the replicas have that should be the same: a tensor by its name and its bytes.
struct ReplicatedTensor {
  std::string name;
  const void* data = nullptr;
  int64_t bytes = 0;
};

// The layers' state; of weights what layers see, and the float32 weights where every replica has all of
// them, but nothing of sharded ones. On the CPU.
std::vector<ReplicatedTensor> replicated_tensors(const model::Parameters& parameters);

// All replicas call it. Empty, or what differs and where, the same line at all of them:
// "transformer.wpe.weight of rank 6 differs from that of ranks 4, 5, 7". `ranks` are the members of
// the group, as the job numbers them.
std::string find_drift(const std::vector<ReplicatedTensor>& tensors,
                       comm::Group& replicas,
                       const std::vector<int32_t>& ranks);

}  // namespace penstock::run
