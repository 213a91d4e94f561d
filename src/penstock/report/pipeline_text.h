// The plan of several ranks in words and tables. plan_text.h is what others call.
#pragma once

#include <string>

#include "penstock/plan/planner.h"

namespace penstock::report {

// What was decided, and nothing of what is predicted.
std::string pipeline_title(const plan::Outcome& outcome);

// That, and what it is predicted to take.
std::string pipeline_line(const plan::Outcome& outcome);

// Which rank lacks how much, and what holds most there.
std::string pipeline_does_not_fit(const plan::Outcome& outcome);

// A row for each rank: its layers, what it holds, how long it computes; then the other schedules.
std::string pipeline_table(const plan::Outcome& outcome);

// Where it does not fit: a row for each rank.
std::string pipeline_certificate(const plan::Outcome& outcome);

}  // namespace penstock::report
