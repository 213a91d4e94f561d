#include "penstock/comm/mpi.h"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <thread>

#include "penstock/base/interrupt.h"
#include "penstock/comm/launcher.h"
#include "penstock/comm/mpi_calls.h"
#include "penstock/comm/mpi_group.h"
#include "penstock/comm/mpi_loader.h"

namespace penstock::comm {

namespace {

// A launcher of another MPI starts processes that each see themselves alone: each would train by
// itself, into the same folder.
void require_all_ranks(MpiCalls& calls, int size) {
  if (size != launched_ranks()) {
    throw ConfigError(cat("the launcher started ",
                          launched_ranks(),
                          " ranks, but MPI connected ",
                          size,
                          "; use the mpirun of the MPI that penstock was built with (",
                          calls.library(),
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
MpiCalls* started = nullptr;
bool is_finished = false;

// MPI can be started once in the life of a process, and a program may train several times.
void finish_mpi() {
  if (started != nullptr && ending == Ending::Done && !is_finished) {
    is_finished = true;
    static_cast<void>(started->finish());  // nobody is left to tell
  }
}

MpiCalls& start_mpi() {
  if (started == nullptr) {
    MpiCalls& calls = load_mpi(mpi_module_file());
    bool may_change_thread = false;
    check_mpi(calls.start(may_change_thread));
    started = &calls;
    std::atexit(finish_mpi);  // for programs that do not call end_mpi()
    ending = Ending::Abort;
    PENSTOCK_CHECK(may_change_thread, "MPI keeps its calls to one thread");
  }
  return *started;
}

}  // namespace

void run_mpi(const std::function<void(Group&)>& work) {
  PENSTOCK_CHECK(ending == Ending::Done, "a job of MPI has failed in this process");
  MpiCalls& calls = start_mpi();
  ending = Ending::Abort;
  // mpirun asks with SIGTERM before it kills: time to say what was waited for.
  install_interrupt_handler();
  int rank = 0;
  int size = 0;
  check_mpi(calls.find_ranks(rank, size));
  require_all_ranks(calls, size);
  MpiGroup group(calls, rank, size);
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
    finish_mpi();
    return;
  }
  // Once a job is being ended, mpirun may drop what a rank wrote just before its own end. The rank
  // that ends the job leaves the others the time to write; they leave it the time to end it.
  std::this_thread::sleep_for(std::chrono::milliseconds(ending == Ending::Abort ? 200 : 500));
  if (ending == Ending::Abort) {
    started->abort(exit_code);
  }
}

}  // namespace penstock::comm
