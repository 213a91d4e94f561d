// Whether a launcher (mpirun, mpiexec, srun) started this process as one of several.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace penstock::comm {

// The number of ranks that the launcher started, as its environment variables say: 1 for a plain
// start. Costs nothing, and starts nothing of MPI.
int32_t launched_ranks();

// The number of this process among those that the launcher started on this machine, from 0; nothing
// where it does not say.
std::optional<int32_t> launched_local_rank();

// What starts as many ranks again, before a command: "mpirun -n 4 "; empty for a plain start.
std::string launcher_words();

}  // namespace penstock::comm
