// Whether the ranks of a program can always go on: what one sends the other receives, in the same
// order and size; the ranks of a group gather and reduce the same in the same order; and no ranks
// wait for each other in a circle.
#pragma once

#include <optional>

#include "penstock/program/program.h"
#include "penstock/program/verify.h"

namespace penstock::program {

// For programs whose ranks are sound one by one. A send waits for nobody, but what frees the value
// begins when the peer has received it; a receive waits for its send. A gather or reduce waits until
// all ranks of its group have come to theirs. One on a line does not hold up its rank: what uses the
// values that it changes, or changes those that it reads, waits; and who waits so has not come to
// what it stands at. Who waits for whom does not depend on how fast anyone is, so one run in any
// order answers for all.
std::optional<Violation> find_endless_wait(const Program& program);

}  // namespace penstock::program
