// The loss of some samples under the weights as they are: a program without gradients and without an
// update, for the ranks of a training step.
#pragma once

#include <cstdint>

#include "penstock/plan/cost_table.h"
#include "penstock/program/program.h"

namespace penstock::plan {

// A pass from the program of a step to that of an evaluation. The ranks hold the same values, run the
// same layers, and gather the same units where weights are sharded; they keep nothing, so that what
// goes between layers is all that is there beside what is held. `table`: of the step's layers, for
// micro-batches of the same size. Fewer samples than that in a micro-batch need no other program:
// they need less memory.
program::Program write_evaluation(const program::Program& step,
                                  const CostTable& table,
                                  int32_t micro_batches = 1);

}  // namespace penstock::plan
