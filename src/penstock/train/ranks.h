// Where the ranks of a run are: processes of a launcher, or threads of this one.
#pragma once

#include <cstdint>
#include <functional>

#include "penstock/comm/group.h"
#include "penstock/config/recipe.h"

namespace penstock::train {

// Runs `work` as every rank of the recipe's plan: under mpirun or srun as this process's, else as
// threads. `asked` is what the user says how many there are; 0:
// nothing. ConfigError where the numbers do not agree. All ranks but the first are quiet, and each
// has an account of its own.
void run_ranks(const config::Recipe& recipe,
               int64_t asked,
               const std::function<void(comm::Group&)>& work);

}  // namespace penstock::train
