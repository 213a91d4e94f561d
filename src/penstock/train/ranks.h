// Where the ranks of a run are: processes of a launcher, or threads of this one.
#pragma once

#include <cstdint>
#include <functional>

#include "penstock/comm/group.h"
#include "penstock/config/recipe.h"
#include "penstock/train/subject.h"

namespace penstock::train {

// Runs `work` as every rank of the recipe's plan: under mpirun or srun as this process's, else as
// threads. `asked` is what the user says how many there are; 0:
// nothing. ConfigError where the numbers do not agree. All ranks but the first are quiet, and each
// has an account of its own.
void run_ranks(const config::Recipe& recipe,
               int64_t asked,
               const std::function<void(comm::Group&)>& work);

// ConfigError where `who` ("--ranks says") names another number of ranks than the plan has.
void require_ranks(const config::PlanOptions& plan, int64_t found, const char* who);

// As many as a launcher has started, or as the user says, or as the recipe has.
int64_t num_ranks(const config::Recipe& recipe, int64_t asked);

// The same where the recipe may leave the layout of the ranks open: it is chosen first (layout.h),
// and `work` gets the recipe that says it.
void run_chosen_ranks(const config::Recipe& recipe,
                      int64_t asked,
                      const std::function<void(comm::Group&, const config::Recipe&)>& work,
                      const Subject& subject = family_subject());

}  // namespace penstock::train
