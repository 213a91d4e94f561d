// What a rank holds before, during and after each instruction. A prediction knows it from the
// program; a measurement from the recorded curve.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/program/program.h"
#include "penstock/program/simulate.h"

namespace penstock::report {

struct HeldBytes {
  int64_t before = 0, during = 0, after = 0;
};

// One for each instruction. What other resources work on at the same moment is counted.
std::vector<HeldBytes> predicted_bytes(const program::RankProgram& rank,
                                       const program::RankTimeline& predicted);

// Read off the curve: `during` is the most between start and end. Exact for instructions that took
// time; points of the same moment are in the order in which they happened.
std::vector<HeldBytes> measured_bytes(const program::RankTimeline& measured);

}  // namespace penstock::report
