// A memory curve as the path of an SVG picture: a step function, thinned to the picture's pixels.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "penstock/program/simulate.h"

namespace penstock::report {

struct PathScale {
  std::function<double(double)> pixel_x;  // of seconds
  std::function<double(double)> pixel_y;  // of bytes
};

// Rises from 0 bytes at the first point and falls to 0 at `end_seconds`, so that it can be filled.
// Its length depends on the picture, not on the number of points. The highest point of each pixel
// column stays, the peak thus too.
std::string memory_path(const std::vector<program::MemoryPoint>& curve,
                        double end_seconds,
                        const PathScale& scale);

}  // namespace penstock::report
