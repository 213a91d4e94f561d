// The step as Chrome trace events, for https://ui.perfetto.dev or chrome://tracing.
//
// A process per rank and timeline, a thread per resource, and memory as a counter.
#pragma once

#include <string>

#include "penstock/report/step_picture.h"

namespace penstock::report {

std::string trace_json(const StepPicture& picture);

}  // namespace penstock::report
