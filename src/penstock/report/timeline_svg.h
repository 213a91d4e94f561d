// The step as one SVG picture: what each rank does when, and what its memory holds meanwhile.
//
// Self-contained, for documents and reports. Its size depends on the picture and the number of
// ranks, not on the number of instructions: what is narrower than a pixel is drawn together.
#pragma once

#include <string>

#include "penstock/report/step_picture.h"

namespace penstock::report {

std::string timeline_svg(const StepPicture& picture);

}  // namespace penstock::report
