#include "penstock/comm/mpi_loader.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "penstock/base/error.h"

namespace penstock::comm {
namespace {

namespace fs = std::filesystem;

class MpiLoader : public testing::Test {
 protected:
  void SetUp() override { ::setenv("OMPI_COMM_WORLD_SIZE", "4", 1); }
  void TearDown() override { ::unsetenv("OMPI_COMM_WORLD_SIZE"); }

  // One line with all of these, and with the way out that needs no MPI.
  static void expect_refused(const fs::path& file, std::vector<std::string> needles) {
    needles.insert(needles.end(), {"a launcher started 4 ranks", "--ranks 4"});
    try {
      load_mpi(file);
      FAIL() << "nothing was thrown";
    } catch (const ConfigError& error) {
      const std::string line = error.what();
      EXPECT_EQ(line.find('\n'), std::string::npos) << line;
      for (const std::string& needle : needles) {
        EXPECT_NE(line.find(needle), std::string::npos) << needle << " in: " << line;
      }
    }
  }
};

TEST_F(MpiLoader, OpensTheModuleThatWasBuiltWithTheProgram) {
  const fs::path file = mpi_module_file();
  EXPECT_TRUE(file.is_absolute()) << file;
  EXPECT_NE(load_mpi(file).library(), "");
}

TEST_F(MpiLoader, SaysWhereAMissingModuleBelongs) {
  expect_refused("/nowhere/penstock_mpi.so",
                 {"/nowhere/penstock_mpi.so", "missing", "cmake --install"});
}

TEST_F(MpiLoader, SaysWhatToInstallWhereMpiCannotBeLoaded) {
  const fs::path file = fs::path(testing::TempDir()) / "penstock_mpi_of_text.so";
  std::ofstream(file) << "no library, but long enough to be asked what it is\n";
  expect_refused(file, {"MPI cannot be loaded", file.string(), "libopenmpi3", "cluster"});
  fs::remove(file);
}

TEST_F(MpiLoader, RefusesAModuleOfAnotherPenstock) {
  expect_refused(OTHER_MPI_MODULE, {"other_mpi_module", "Penstock 0.0.1", "cmake --install"});
  expect_refused("libm.so.6", {"libm.so.6 is no module of Penstock", "cmake --install"});
}

}  // namespace
}  // namespace penstock::comm
