#include "penstock/comm/launcher.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "penstock/base/error.h"

namespace penstock::comm {

namespace {

// Of mpirun (Open MPI), of mpiexec (MPICH and its kin), of srun. Not SLURM_NTASKS, which a batch
// script has too, where a plain start is a plain start.
constexpr const char* kSizeVariables[] = {
    "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};

}  // namespace

int32_t launched_ranks() {
  for (const char* name : kSizeVariables) {
    const char* const value = std::getenv(name);
    if (value == nullptr) {
      continue;
    }
    const std::string_view text = value;
    int32_t ranks = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
    if (error != std::errc() || end != text.data() + text.size() || ranks < 1) {
      throw ConfigError(cat("the environment variable ",
                            name,
                            " is '",
                            text,
                            "', where a launcher puts its number of ranks; unset it for a run "
                            "without mpirun or srun"));
    }
    return ranks;
  }
  return 1;
}

}  // namespace penstock::comm
