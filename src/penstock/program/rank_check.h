// One rank's list: what each instruction demands of its values, of its layer and of its place.
#pragma once

#include <cstdint>

#include "penstock/program/backwards.h"
#include "penstock/program/program.h"
#include "penstock/program/verify.h"

namespace penstock::program {

// Throws Refusal (rank_lives.h) at the first fault. `backwards`: of the rank's replica, so far.
Peak check_rank(const Program& program, int32_t number, Backwards& backwards);

}  // namespace penstock::program
