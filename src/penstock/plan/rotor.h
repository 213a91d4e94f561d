// ROTOR: the fastest recomputation schedule of a chain within a byte limit (Beaumont et al., 2019),
// among those that hold a stored value until its backward. docs/rotor.md has the recurrence.
//
// Every layer may offer several save modes; the schedule picks one for each. Feasibility is decided
// on exact bytes; time is optimised over memory slots, which are exact where the sizes are small
// whole numbers (or multiples of one) and rounded against the schedule elsewhere.
#pragma once

#include <cstdint>

#include "penstock/plan/operations.h"

namespace penstock::plan {

struct RotorOptions {
  int64_t slots = 0;  // memory levels that are told apart; 0: exact where possible, else many
  int threads = 0;    // 0: one per core
};

struct RotorAnswer {
  bool is_feasible = false;
  // The least limit with any schedule, in bytes, and exact: one byte less has none.
  int64_t least_bytes = 0;
  double seconds = 0;     // of the operations
  Operations operations;  // for the limit; where it is not feasible, for least_bytes
  int64_t slots = 0;      // that the solution used
  int64_t slot_bytes = 1;
};

// `limit_bytes` covers everything the micro-batch holds, its input and targets included; residents
// and other micro-batches are not part of it.
RotorAnswer solve_rotor(const CostTable& table, int64_t limit_bytes, const RotorOptions& options);

}  // namespace penstock::plan
