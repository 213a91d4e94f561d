// Ranks as processes, started by mpirun or srun: 'mpirun -n 4 penstock train ...'. MPI is loaded by
// run_mpi, and only then (mpi_loader.h). Where it was not found when Penstock was built, no_mpi.cpp
// stands in.
#pragma once

#include <functional>

#include "penstock/comm/group.h"

namespace penstock::comm {

// Runs `work` as this process's rank of a job whose launcher started several (launched_ranks() is
// more than 1). A process may do so several times, as long as none fails. Where MPI is missing, a ConfigError. What `work` throws is told
// to the other ranks. Either goes on to the caller, who writes its line and then calls end_mpi.
void run_mpi(const std::function<void(Group&)>& work);

// The last call of main, for programs with an exit code of their own. Where run_mpi has thrown, ends the whole job with this exit code, ranks
// that hang included; where another rank does that, leaves it the time to.
void end_mpi(int exit_code);

}  // namespace penstock::comm
