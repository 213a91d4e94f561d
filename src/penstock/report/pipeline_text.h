// The plan of a pipeline in words and tables, for people.
#pragma once

#include <string>

#include "penstock/plan/pipeline_planner.h"

namespace penstock::report {

// "1f1b on 4 ranks, 8 micro-batches, cut at 6, 12, 18; 14 forwards run again; peak 598.1 MiB of
// 600.0 MiB; step 1.2 s, 21.4 % of it bubble".
std::string pipeline_line(const plan::PipelineResult& result, int64_t limit_bytes);

// One line: which rank lacks how much, and what holds most there.
std::string does_not_fit(const plan::PipelineResult& result, int64_t limit_bytes);

// A row for each rank: its layers, what it holds, how long it computes; then the other schedules.
std::string pipeline_table(const plan::CostTable& costs, const plan::PipelineResult& result);

// Where it does not fit: a row for each rank.
std::string pipeline_certificate(const plan::PipelineResult& result, int64_t limit_bytes);

}  // namespace penstock::report
