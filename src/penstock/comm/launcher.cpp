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

constexpr const char* kLocalRankVariables[] = {
    "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};

// Of the first variable that is set, a number of at least `least`.
template <size_t N>
std::optional<int32_t> find_number(const char* const (&names)[N], int32_t least, const char* what) {
  for (const char* name : names) {
    const char* const value = std::getenv(name);
    if (value == nullptr) {
      continue;
    }
    const std::string_view text = value;
    int32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < least) {
      throw ConfigError(cat("the environment variable ",
                            name,
                            " is '",
                            text,
                            "', where a launcher puts ",
                            what,
                            "; unset it for a run without mpirun or srun"));
    }
    return number;
  }
  return std::nullopt;
}

}  // namespace

int32_t launched_ranks() {
  return find_number(kSizeVariables, 1, "its number of ranks").value_or(1);
}

std::string launcher_words() {
  const int32_t ranks = launched_ranks();
  const char* const launcher = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr   ? "mpirun"
                               : std::getenv("SLURM_STEP_NUM_TASKS") != nullptr ? "srun"
                                                                                : "mpiexec";
  return ranks == 1 ? "" : cat(launcher, " -n ", ranks, " ");
}

std::optional<int32_t> launched_local_rank() {
  return find_number(kLocalRankVariables, 0, "the number of a rank on its machine");
}

}  // namespace penstock::comm
