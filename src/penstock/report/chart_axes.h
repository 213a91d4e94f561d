// What the drawings of a LineChart share: its axes, and its curves as runs of points to be joined.
#pragma once

#include <vector>

#include "penstock/report/axis.h"
#include "penstock/report/line_chart.h"

namespace penstock::report {

struct Point {
  double x = 0;
  double y = 0;
};

struct ChartAxes {
  Axis x, y;
  bool is_empty = true;  // no point to show
};

// Covers all curves and marks.
ChartAxes chart_axes(const LineChart& chart);

// Positions along the axes, 0 to 1. A new run begins after each point that cannot be shown.
std::vector<std::vector<Point>> runs_of(const Curve& curve, const ChartAxes& axes);

}  // namespace penstock::report
