// A step as every rank measured it, put together.
#pragma once

#include <optional>

#include "penstock/base/clock.h"
#include "penstock/comm/group.h"
#include "penstock/program/program.h"
#include "penstock/program/simulate.h"
#include "penstock/train/step_records.h"

namespace penstock::train {

// The step of median length at rank 0, among the last ones. All ranks call it, with records of the
// same steps, which ran this program; rank 0 gets the timeline, the others nothing, and so does it
// where there are none.
//
// Ranks need not begin a step at the same time. Threads have one clock; other ranks' clocks are
// compared with rank 0's by messages to and fro, which is wrong by half of the shortest such trip
// at most.
std::optional<program::Timeline> gather_step(const StepRecords& records,
                                             const program::Program& program,
                                             comm::Group& group);

}  // namespace penstock::train
