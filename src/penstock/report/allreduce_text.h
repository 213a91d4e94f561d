// The tables of 'penstock bench allreduce'.
#pragma once

#include <string>
#include <vector>

#include "penstock/comm/all_reduce_bench.h"
#include "penstock/plan/link_costs.h"

namespace penstock::report {

// A row for each size, a column for each algorithm: milliseconds, the least marked with a star, and
// message bytes a second. Then what was fitted, with steps for that many ranks.
std::string all_reduce_text(const std::vector<comm::AllReduceTime>& times,
                            const plan::LinkCosts& fitted);

}  // namespace penstock::report
