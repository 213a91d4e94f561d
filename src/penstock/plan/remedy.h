// What a change would do to a step that does not fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/plan/planner.h"

namespace penstock::plan {

struct Remedy {
  std::string change;       // "plan.micro_batches = 4"
  int64_t least_bytes = 0;  // with it
  bool fits = false;        // within the limit that was asked for
  double step_s = 0;        // if it fits, within that limit; else at least_bytes
};

// By the cost table alone: half the micro-batch (half the activations and seconds, twice as many),
// and rotor instead of another recomputation.
std::vector<Remedy> find_remedies(const CostTable& costs, const Outcome& outcome);

}  // namespace penstock::plan
