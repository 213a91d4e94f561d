// Whether the ranks of a program can always go on: what one sends the other receives, in the same
// order and size; replicas of a stage gather and reduce the same in the same order; and no ranks
// wait for each other in a circle.
#pragma once

#include <optional>

#include "penstock/program/program.h"
#include "penstock/program/verify.h"

namespace penstock::program {

// For programs whose ranks are sound one by one. A send waits for nobody, but what frees the value
// waits until the peer has received it; a receive waits for its send; a step waits for all ranks,
// unless the program has several. A gather or reduce waits for nobody, but what reads or frees what
// it makes, or frees what it reads, waits until all replicas of the stage have come to theirs. Who
// waits for whom does not depend on how fast anyone is, so one run in any order answers for all.
std::optional<Violation> find_endless_wait(const Program& program);

}  // namespace penstock::program
