// For builds without MPI.
#include <string>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "penstock/comm/mpi.h"

namespace penstock::comm {
namespace {

TEST(NoMpi, AJobOfSeveralProcessesIsRefusedWithWhatToInstall) {
  ::setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  try {
    run_mpi([](Group&) { FAIL() << "no rank was to run"; });
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    const std::string line = error.what();
    EXPECT_NE(line.find("started 4 ranks"), std::string::npos) << line;
    EXPECT_NE(line.find("libopenmpi-dev"), std::string::npos) << line;
  }
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
}

}  // namespace
}  // namespace penstock::comm
