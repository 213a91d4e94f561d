#include "penstock/report/memory_path.h"

#include <algorithm>
#include <cmath>

#include "penstock/report/svg.h"

namespace penstock::report {

namespace {

using program::MemoryPoint;
using Iterator = std::vector<MemoryPoint>::const_iterator;

// Writes "H" and "V" commands, without those that change nothing at the precision of the picture.
class PathWriter {
 public:
  PathWriter(const PathScale& scale, double first_seconds)
      : scale_(scale),
        x_(svg_pixels(scale.pixel_x(first_seconds))),
        y_(svg_pixels(scale.pixel_y(0))),
        path_("M" + x_ + " " + y_) {}

  void step_to(double seconds, int64_t bytes) {
    const std::string x = svg_pixels(scale_.pixel_x(seconds));
    const std::string y = svg_pixels(scale_.pixel_y(static_cast<double>(bytes)));
    if (y != y_) {
      path_ += (x != x_ ? "H" + x : "") + "V" + y;
      x_ = x;
      y_ = y;
    }
  }
  const std::string& path() const { return path_; }

 private:
  const PathScale& scale_;
  std::string x_, y_, path_;
};

// All points of one pixel column: up to the highest, then on from the last. A low that lasts less
// than a pixel, as between two instructions, would only hide the curve.
void write_column(Iterator first, Iterator end, PathWriter& path) {
  const Iterator highest = std::max_element(
      first, end, [](const MemoryPoint& a, const MemoryPoint& b) { return a.bytes < b.bytes; });
  path.step_to(first->seconds, highest->bytes);
  path.step_to((end - 1)->seconds, (end - 1)->bytes);
}

}  // namespace

std::string memory_path(const std::vector<MemoryPoint>& curve,
                        double end_seconds,
                        const PathScale& scale) {
  if (curve.empty()) {
    return "";
  }
  PathWriter path(scale, curve.front().seconds);
  const auto column = [&](const MemoryPoint& point) {
    return std::floor(scale.pixel_x(point.seconds));
  };
  for (Iterator first = curve.begin(); first != curve.end();) {
    const double here = column(*first);
    const Iterator end = std::find_if(
        first, curve.end(), [&](const MemoryPoint& point) { return column(point) != here; });
    write_column(first, end, path);
    first = end;
  }
  path.step_to(end_seconds, 0);
  return path.path();
}

}  // namespace penstock::report
