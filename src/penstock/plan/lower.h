// From a schedule of operations to the program of the step.
#pragma once

#include <cstdint>

#include "penstock/plan/holdings.h"
#include "penstock/plan/operations.h"
#include "penstock/plan/spent.h"
#include "penstock/program/program.h"

namespace penstock::plan {

// The step of one rank: the operations for one micro-batch after the other, then the update. Every
// value is freed by the instruction that uses it last. `holdings`: of the rank; those that the table
// names where there are none.
program::Program lower(const CostTable& table,
                       const Operations& operations,
                       int32_t micro_batches,
                       int64_t limit_bytes,
                       const Holdings& holdings = {},
                       Spent* spent = nullptr);

}  // namespace penstock::plan
