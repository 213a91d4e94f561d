// Ranks as threads of this process.
#pragma once

#include <cstdint>
#include <functional>

#include "penstock/comm/group.h"

namespace penstock::comm {

// Runs `work` once for each rank, rank 0 on the calling thread, and returns when all have ended.
// What one rank throws ends the others with a PeerError, and is what run_local throws: the first
// error, not those that followed from it.
void run_local(int32_t ranks, const std::function<void(Group&)>& work);

}  // namespace penstock::comm
