#include "penstock/report/chart_axes.h"

#include "penstock/base/error.h"

namespace penstock::report {

ChartAxes chart_axes(const LineChart& chart) {
  const Scale x_scale = chart.log_x ? Scale::Log10 : Scale::Linear;
  const Axis any_x({}, x_scale), any_y({}, Scale::Linear);
  std::vector<double> xs, ys;
  for (const Curve& curve : chart.curves) {
    PENSTOCK_CHECK(curve.x.size() == curve.y.size(),
                   "curve ",
                   curve.name,
                   " has ",
                   curve.x.size(),
                   " x and ",
                   curve.y.size(),
                   " y");
    // A point that is not drawn does not stretch the other axis.
    for (size_t i = 0; i < curve.x.size(); ++i) {
      if (any_x.can_show(curve.x[i]) && any_y.can_show(curve.y[i])) {
        xs.push_back(curve.x[i]);
        ys.push_back(curve.y[i]);
      }
    }
  }
  for (const Mark& mark : chart.marks) {
    xs.push_back(mark.x);
  }
  return {Axis(xs, x_scale), Axis(ys, Scale::Linear), ys.empty()};
}

std::vector<std::vector<Point>> runs_of(const Curve& curve, const ChartAxes& axes) {
  std::vector<std::vector<Point>> runs;
  bool is_broken = true;
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (!axes.x.can_show(curve.x[i]) || !axes.y.can_show(curve.y[i])) {
      is_broken = true;
      continue;
    }
    if (is_broken) {
      runs.emplace_back();
      is_broken = false;
    }
    runs.back().push_back({axes.x.position(curve.x[i]), axes.y.position(curve.y[i])});
  }
  return runs;
}

}  // namespace penstock::report
