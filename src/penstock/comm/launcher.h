// Whether a launcher (mpirun, mpiexec, srun) started this process as one of several.
#pragma once

#include <cstdint>

namespace penstock::comm {

// The number of ranks that the launcher started, as its environment variables say: 1 for a plain
// start. Costs nothing, and starts nothing of MPI.
int32_t launched_ranks();

}  // namespace penstock::comm
