// Finds and opens the module that talks to MPI, in a process that a launcher started.
#pragma once

#include <filesystem>

#include "penstock/comm/mpi_calls.h"

namespace penstock::comm {

// Where the module is: in the folder of libraries beside that of this program, in the build tree as
// where they are installed; else where the system's loader finds libraries, for a program of
// another project knows their folder since it was linked. Never in the current folder. Where there
// is none, its first place.
std::filesystem::path mpi_module_file();

// Stays open for good. Where the module or MPI is missing, a ConfigError with what to do.
MpiCalls& load_mpi(const std::filesystem::path& module_file);

}  // namespace penstock::comm
