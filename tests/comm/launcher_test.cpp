#include "penstock/comm/launcher.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "penstock/base/error.h"

namespace penstock::comm {
namespace {

class Launcher : public testing::Test {
 protected:
  void SetUp() override { forget_all(); }
  void TearDown() override { forget_all(); }

 private:
  static void forget_all() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE",
                             "PMI_SIZE",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_NTASKS",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "MPI_LOCALRANKID",
                             "SLURM_LOCALID"}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(Launcher, APlainStartIsOneRank) {
  EXPECT_EQ(launched_ranks(), 1);
}

TEST_F(Launcher, EachLauncherSaysHowManyRanksItStarted) {
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"}) {
    ::setenv(name, "4", 1);
    EXPECT_EQ(launched_ranks(), 4) << name;
    ::unsetenv(name);
  }
}

TEST_F(Launcher, ABatchScriptIsAPlainStart) {
  ::setenv("SLURM_NTASKS", "8", 1);
  EXPECT_EQ(launched_ranks(), 1);
}

TEST_F(Launcher, ASizeThatIsNoNumberOfRanksIsRefused) {
  for (const char* value : {"", "four", "0", "-2", "4x", "99999999999"}) {
    ::setenv("PMI_SIZE", value, 1);
    EXPECT_THROW(launched_ranks(), ConfigError) << value;
  }
}

TEST_F(Launcher, EachLauncherSaysWhichRankOfAMachineThisIs) {
  EXPECT_EQ(launched_local_rank(), std::nullopt);
  for (const char* name : {"SLURM_LOCALID", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK"}) {
    ::setenv(name, "0", 1);
    EXPECT_EQ(launched_local_rank(), 0) << name;
    ::setenv(name, "3", 1);
    EXPECT_EQ(launched_local_rank(), 3) << name;
    ::unsetenv(name);
  }
}

TEST_F(Launcher, ALocalRankThatIsNoNumberIsRefused) {
  ::setenv("SLURM_LOCALID", "-1", 1);
  try {
    launched_local_rank();
    ADD_FAILURE() << "a local rank of -1 was taken";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "the environment variable SLURM_LOCALID is '-1', where a launcher puts the number "
                 "of a rank on its machine; unset it for a run without mpirun or srun");
  }
}

}  // namespace
}  // namespace penstock::comm
