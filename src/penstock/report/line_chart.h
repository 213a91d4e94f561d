// Curves over one x axis, as an SVG picture or as text for a terminal.
//
// Points that cannot be shown (NaN, infinities, x <= 0 on a log axis) break the line. A chart
// without points is drawn empty and says so.
#pragma once

#include <string>
#include <vector>

namespace penstock::report {

struct Curve {
  std::string name;
  std::vector<double> x, y;  // of the same length
};

// A vertical dashed line.
struct Mark {
  double x = 0;
  std::string label;
};

struct LineChart {
  std::string title = "", x_label = "", y_label = "";
  bool log_x = false;
  std::vector<Curve> curves = {};
  std::vector<Mark> marks = {};
};

// Self-contained: no fonts, styles or scripts from elsewhere. Its size depends on the picture, not
// on how many points the curves have.
std::string line_chart_svg(const LineChart& chart);

// The first curve, without marks, in at most `width` columns and `height` lines, labels included.
// Less than 24 columns or 8 lines is taken for that.
std::string line_chart_text(const LineChart& chart, int width, int height);

}  // namespace penstock::report
