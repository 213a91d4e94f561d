// A plan in words and tables, for people.
#pragma once

#include <string>

#include "penstock/plan/planner.h"

namespace penstock::report {

// "rotor, 14 forwards run again; peak 598.1 MiB of 600.0 MiB; step 1.2 s, 12.3 % over keeping
// everything".
std::string plan_line(const plan::CostTable& costs, const plan::PlanResult& result);

// The table's description, if there is one, and the plan_line().
std::string plan_title(const plan::CostTable& costs, const plan::PlanResult& result);

// One line: what is missing, what binds, what to try.
std::string does_not_fit(const plan::PlanResult& result);

// One row per layer: what it keeps for its backward from the first forward on, how often it runs,
// bytes and seconds, per micro-batch.
std::string plan_table(const plan::CostTable& costs, const plan::PlanResult& result);

// The totals: peak against limit, seconds, overhead.
std::string plan_totals(const plan::CostTable& costs, const plan::PlanResult& result);

// "12.3 % over keeping everything", or under where another way of keeping is faster; "-" where
// nothing takes any time.
std::string overhead_text(const plan::PlanResult& result);

}  // namespace penstock::report
