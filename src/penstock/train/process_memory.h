// The RAM of a process beside what its plan counts: LibTorch and other libraries, MPI, stacks, batches read
// ahead (docs/limits.md). A run is held to run.process_memory by a smaller plan.memory, and does not start
// where the machine, its cgroup or ulimit could not give what the plan needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/base/process.h"
#include "penstock/config/recipe.h"

namespace penstock::comm {
class Group;
}

namespace penstock::train {

// What a process takes for itself once it computes, beyond what it has when it is ready to; and what MPI takes.
inline constexpr int64_t kComputingBytes = int64_t{48} << 20;
inline constexpr int64_t kMpiBytes = int64_t{64} << 20;

// The recipe with the plan.memory that run.process_memory leaves each of `ranks_here` ranks of this process,
// which has `resident` bytes so far. ConfigError where it leaves none, or less than plan.memory asks for.
config::Recipe within_process_memory(config::Recipe recipe, int64_t ranks_here, int64_t resident);

// The ranks of one host, put together.
struct Need {
  int64_t tensors = 0;   // the predicted peaks
  int64_t resident = 0;  // what their processes have now, file pages left out
  int64_t processes = 1;
  int64_t ranks = 1;
};

// What does not fit, in one line; nothing: it does.
std::string missing_room(const Need& need,
                         const MemoryCeiling& host,
                         const std::optional<MemoryCeiling>& allocation);

// All ranks call it, with the predicted peaks of all, before they allocate. Error (exit code 1), on all ranks of
// the host that has too little.
void require_room(const config::Recipe& recipe,
                  const std::vector<int64_t>& peaks,
                  comm::Group& group);

}  // namespace penstock::train
