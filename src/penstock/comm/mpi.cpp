#include "penstock/comm/mpi.h"

#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include <mpi.h>

#include "penstock/base/interrupt.h"
#include "penstock/comm/launcher.h"
#include "penstock/comm/mpi_group.h"

namespace penstock::comm {

namespace {

// A launcher of another MPI starts processes that each see themselves alone: each would train by
// itself, into the same folder.
void require_all_ranks(int size) {
  if (size != launched_ranks()) {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> version = {};
    int length = 0;
    MPI_Get_library_version(version.data(), &length);
    const std::string name(version.data(), std::strcspn(version.data(), ",\n"));
    throw ConfigError(cat("the launcher started ",
                          launched_ranks(),
                          " ranks, but MPI connected ",
                          size,
                          "; use the mpirun of the MPI that penstock was built with (",
                          name,
                          "), or srun --mpi=pmix"));
  }
}

// How this process ends its job; one per process, as MPI is.
enum class Ending {
  Done,   // nothing to do
  Leave,  // another rank ends the job; many that do make mpirun complain about itself
  Abort,
};
Ending ending = Ending::Done;

}  // namespace

void run_mpi(const std::function<void(Group&)>& work) {
  int level = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
  ending = Ending::Abort;
  PENSTOCK_CHECK(level >= MPI_THREAD_SERIALIZED, "MPI allows threads only at level ", level);
  // mpirun asks with SIGTERM before it kills: time to say what was waited for.
  install_interrupt_handler();
  int rank = 0;
  int size = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  require_all_ranks(size);
  MpiGroup group(rank, size);
  try {
    work(group);
    group.close();
    ending = Ending::Done;
  } catch (const PeerError&) {
    ending = Ending::Leave;
    throw;
  } catch (...) {
    group.fail(describe_failure(rank, std::current_exception()));
    throw;
  }
}

void end_mpi(int exit_code) {
  if (ending == Ending::Done) {
    return;
  }
  // Once a job is being ended, mpirun may drop what a rank wrote just before its own end. The rank
  // that ends the job leaves the others the time to write; they leave it the time to end it.
  std::this_thread::sleep_for(std::chrono::milliseconds(ending == Ending::Abort ? 200 : 500));
  if (ending == Ending::Abort) {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
}

}  // namespace penstock::comm
