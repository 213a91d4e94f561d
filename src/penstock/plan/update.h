// How a program's weights move: a step becomes what all ranks need to agree on, and the step itself.
#pragma once

#include <cstdint>

#include "penstock/plan/holdings.h"
#include "penstock/plan/link_cost.h"
#include "penstock/program/program.h"

namespace penstock::plan {

// Of a float32 gradient that is added up over stages, at once: what comes in needs room.
inline constexpr int64_t kStageExchangeBytes = int64_t{4} << 20;

// A pass, after hold(). Before each step come: the sum over the stages that have the same unit (a
// tied table); the merge of what the layers of replicas have changed of their state; the squares of
// the rank's gradients; those of all ranks, where they update together; and the decision what
// gradients are multiplied by. `link`: what a message between ranks takes.
program::Program write_updates(program::Program program,
                               const Holdings& holdings,
                               const LinkCost& link);

}  // namespace penstock::plan
