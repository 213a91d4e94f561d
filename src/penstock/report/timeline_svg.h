// The step as one SVG picture: what each rank does when, and what its memory holds meanwhile.
//
// Self-contained, for documents and reports. Its size depends on the picture and the number of
// ranks, not on the number of instructions: what is narrower than a pixel is drawn together.
#pragma once

#include <string>
#include <string_view>

#include "penstock/report/step_picture.h"

namespace penstock::report {

std::string timeline_svg(const StepPicture& picture);

// The same in parts, for a picture that has more in it.
struct TimelineDrawing {
  std::string elements;
  double height = 0;
};
TimelineDrawing draw_timeline(const StepPicture& picture);
std::string timeline_svg_opening(double height, std::string_view title);

}  // namespace penstock::report
