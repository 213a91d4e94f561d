// A plan in words and tables, for people.
#pragma once

#include <string>
#include <vector>

#include "penstock/plan/planner.h"
#include "penstock/plan/remedy.h"

namespace penstock::report {

// One rank: "rotor, 14 forwards recomputed; peak 598.1 MiB of 600.0 MiB; step 1.2 s, 12.3 % over
// keeping everything". Several: "1f1b on 4 ranks, 8 micro-batches, cut at 6, 12, 18; 14 forwards
// recomputed; peak 598.1 MiB of 600.0 MiB; step 1.2 s, 21.4 % of it bubble".
std::string plan_line(const plan::Outcome& outcome);

// For pictures, which say themselves what was predicted and what was measured. One rank: the table's
// description, if there is one; several: what was decided. And the limit.
std::string plan_title(const plan::CostTable& costs, const plan::Outcome& outcome);

// One line: what is missing, what binds, what to try.
std::string does_not_fit(const plan::Outcome& outcome);

// All of it. One rank: a row for each layer (what it keeps for its backward from the first forward
// on, how often it runs, bytes and seconds of a micro-batch), then totals. Several: a row for each
// rank, the other schedules, the line.
std::string plan_page(const plan::CostTable& costs, const plan::Outcome& outcome);

// The two parts of one rank's page.
std::string plan_table(const plan::CostTable& costs, const plan::Outcome& outcome);
std::string plan_totals(const plan::CostTable& costs, const plan::Outcome& outcome);

// Where it does not fit: what would, and what changes would do.
std::string certificate_page(const plan::CostTable& costs,
                             const plan::Outcome& outcome,
                             const std::vector<plan::Remedy>& remedies);

// "12.3 % over keeping everything", or under where another save mode is faster; "-" where nothing
// takes any time.
std::string overhead_text(const plan::Outcome& outcome);

}  // namespace penstock::report
