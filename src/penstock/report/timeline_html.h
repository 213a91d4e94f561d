// The step as one page for a browser: the timeline and the memory curve to zoom into, the numbers
// of each instruction, and a table per layer.
//
// Self-contained: it loads nothing, and opens from a file. Names in it may come from anywhere.
#pragma once

#include <string>

#include "penstock/report/step_picture.h"

namespace penstock::report {

std::string timeline_html(const StepPicture& picture);

// The page with a title and data: that of a step (timeline_data.h), or of several as "steps".
std::string filled_page(const std::string& title, const std::string& data);

}  // namespace penstock::report
