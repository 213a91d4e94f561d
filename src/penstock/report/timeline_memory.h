// The memory of a rank over time, below the lanes of a timeline's picture.
#pragma once

#include <string>

#include "penstock/report/step_picture.h"
#include "penstock/report/timeline_layout.h"

namespace penstock::report {

std::string memory_panel_svg(const StepPicture& picture, const Layout& layout, size_t rank);

}  // namespace penstock::report
