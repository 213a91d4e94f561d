// From a schedule of operations to the program of the step.
#pragma once

#include <cstdint>

#include "penstock/plan/operations.h"
#include "penstock/program/program.h"

namespace penstock::plan {

// The step of one rank: clear, the operations for one micro-batch after the other, step. Every
// value is freed by the instruction that uses it last.
program::Program lower(const CostTable& table,
                       const Operations& operations,
                       int32_t micro_batches,
                       int64_t limit_bytes);

}  // namespace penstock::plan
