#include "penstock/comm/launcher.h"
#include "penstock/comm/mpi.h"

namespace penstock::comm {

void run_mpi(const std::function<void(Group&)>&) {
  throw ConfigError(cat("a launcher started ",
                        launched_ranks(),
                        " ranks, but this penstock was built without MPI; run tools/setup (or "
                        "install libopenmpi-dev and openmpi-bin) and build it again"));
}

void end_mpi(int) {}

}  // namespace penstock::comm
