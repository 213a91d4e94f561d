// The bars of one lane of a timeline, as SVG.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/report/step_picture.h"

namespace penstock::report {

// One resource of one rank, in one timeline.
struct BarLane {
  const program::Program& program;
  const program::RankProgram& rank;
  const std::vector<BarKind>& kinds;         // of all the rank's instructions
  const std::vector<program::Span>& spans;   // likewise
  const std::vector<program::Span>* others;  // of the other timeline, or null
  std::string_view others_name;              // "measured"
  program::Resource resource;
  bool is_bare = false;                   // without units and bytes
  double height = 0;                      // pixels
  std::function<double(double)> pixel_x;  // of seconds
};

// Drawn from y = 0 to lane.height. Bars wide enough to point at have a tooltip, and a name where
// it fits; bars narrower than half a pixel are drawn together.
std::string bars_svg(const BarLane& lane);

}  // namespace penstock::report
