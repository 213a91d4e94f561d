#include "penstock/report/line_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "penstock/base/text.h"
#include "penstock/report/chart_axes.h"
#include "penstock/report/svg.h"
#include "penstock/report/text_width.h"

namespace penstock::report {

namespace {

// Okabe and Ito's colours, told apart with any colour vision; without their yellow, which is faint
// on white.
constexpr std::array kColours = {
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
constexpr std::array kDashes = {"", "6 3", "2 3"};  // for more curves than colours

// Pixels.
constexpr double kWidth = 760, kPlotHeight = 320;
constexpr double kLeft = 72, kRight = 24, kTop = 16, kBottom = 56;
constexpr double kTitleHeight = 26, kLegendRowHeight = 20, kMarkLabelHeight = 15;
constexpr double kLetterWidth = 6.6;  // of the 12 px text, on average

constexpr int kNumTicks = 6;

// The axes on the picture.
struct Frame {
  ChartAxes axes;
  double top = 0;

  double right() const { return kWidth - kRight; }
  double bottom() const { return top + kPlotHeight; }
  double centre_x() const { return (kLeft + right()) / 2; }
  double centre_y() const { return (top + bottom()) / 2; }
  double pixel_x(double position) const { return kLeft + position * (right() - kLeft); }
  double pixel_y(double position) const { return bottom() - position * kPlotHeight; }
};

double estimated_width(std::string_view text) {
  return kLetterWidth * static_cast<double>(text_width(text));
}

std::string stroke_of(size_t curve) {
  const std::string_view dash = kDashes[curve / kColours.size() % kDashes.size()];
  return cat("stroke=\"",
             kColours[curve % kColours.size()],
             "\" stroke-width=\"1.8\"",
             dash.empty() ? "" : cat(" stroke-dasharray=\"", dash, "\""));
}

// Of neighbours in the same pixel column only the first, lowest, highest and last: they cover the
// same pixels.
std::vector<Point> thinned(const std::vector<Point>& run) {
  const auto column = [](Point point) { return std::floor(point.x); };
  std::vector<Point> kept;
  for (auto first = run.begin(); first != run.end();) {
    const auto end = std::find_if(
        first, run.end(), [&](Point point) { return column(point) != column(*first); });
    const auto [lowest, highest] =
        std::minmax_element(first, end, [](Point a, Point b) { return a.y < b.y; });
    std::array chosen = {first, lowest, highest, end - 1};
    std::sort(chosen.begin(), chosen.end());
    const auto chosen_end = std::unique(chosen.begin(), chosen.end());
    std::for_each(chosen.begin(), chosen_end, [&](auto point) { kept.push_back(*point); });
    first = end;
  }
  return kept;
}

// A line needs two points; alone, a point is drawn as a dot, or it would not be seen.
std::string dot_svg(Point point, size_t index) {
  return cat("<circle cx=\"",
             svg_pixels(point.x),
             "\" cy=\"",
             svg_pixels(point.y),
             "\" r=\"2.5\" fill=\"",
             kColours[index % kColours.size()],
             "\"/>\n");
}

std::string curve_svg(const Curve& curve, size_t index, const Frame& frame) {
  std::string out;
  for (std::vector<Point>& run : runs_of(curve, frame.axes)) {
    for (Point& point : run) {
      point = {frame.pixel_x(point.x), frame.pixel_y(point.y)};
    }
    if (run.size() == 1) {
      out += dot_svg(run[0], index);
      continue;
    }
    std::vector<std::string> points;
    for (const Point& point : thinned(run)) {
      points.push_back(svg_pixels(point.x) + "," + svg_pixels(point.y));
    }
    out += cat("<polyline fill=\"none\" stroke-linejoin=\"round\" ",
               stroke_of(index),
               " points=\"",
               join(points, " "),
               "\"/>\n");
  }
  return out;
}

std::string axes_svg(const LineChart& chart, const Frame& frame) {
  std::string out;
  for (const Tick& tick : frame.axes.y.ticks(kNumTicks)) {
    const double y = frame.pixel_y(frame.axes.y.position(tick.value));
    out += svg_line(kLeft, y, frame.right(), y, "stroke=\"#e3e3e3\"");
    out += svg_text(kLeft - 8, y + 4, "text-anchor=\"end\" fill=\"#444444\"", tick.label);
  }
  const double bottom = frame.bottom();
  for (const Tick& tick : frame.axes.x.ticks(kNumTicks)) {
    const double x = frame.pixel_x(frame.axes.x.position(tick.value));
    out += svg_line(x, frame.top, x, bottom, "stroke=\"#f0f0f0\"");
    out += svg_line(x, bottom, x, bottom + 5, "stroke=\"#666666\"");
    out += svg_text(x, bottom + 19, "text-anchor=\"middle\" fill=\"#444444\"", tick.label);
  }
  out += svg_line(kLeft, bottom, frame.right(), bottom, "stroke=\"#666666\"");
  const std::string style = "text-anchor=\"middle\" fill=\"#222222\"";
  out += svg_text(frame.centre_x(), bottom + 42, style, chart.x_label);
  const std::string upwards =
      cat(" transform=\"rotate(-90 18 ", svg_pixels(frame.centre_y()), ")\"");
  return out + svg_text(18, frame.centre_y(), style + upwards, chart.y_label);
}

std::string marks_svg(const LineChart& chart, const Frame& frame) {
  const double first_label_y = frame.top + 14;
  double label_y = first_label_y;
  std::string lines, labels;  // apart, so that no line is drawn over a label
  for (const Mark& mark : chart.marks) {
    if (!frame.axes.x.can_show(mark.x)) {
      continue;
    }
    const double x = frame.pixel_x(frame.axes.x.position(mark.x));
    lines += svg_line(x,
                      frame.top,
                      x,
                      frame.bottom(),
                      "stroke=\"#444444\" stroke-width=\"1.2\" stroke-dasharray=\"5 4\"");
    const bool fits_right = x + 6 + estimated_width(mark.label) <= frame.right();
    // A white edge keeps the label readable over a curve.
    labels += svg_text(fits_right ? x + 6 : x - 6,
                       label_y,
                       cat("text-anchor=\"",
                           fits_right ? "start" : "end",
                           "\" fill=\"#222222\" stroke=\"#ffffff\" stroke-width=\"3\" "
                           "paint-order=\"stroke\""),
                       mark.label);
    // Each label on its own line, as marks may be close to each other.
    label_y += kMarkLabelHeight;
    if (label_y > frame.bottom()) {
      label_y = first_label_y;
    }
  }
  return lines + labels;
}

struct LegendEntry {
  double x = 0;
  int row = 0;
};

// Left to right, with a new row where the names do not fit any more. None for a single curve.
std::vector<LegendEntry> legend_layout(const LineChart& chart) {
  std::vector<LegendEntry> entries;
  if (chart.curves.size() < 2) {
    return entries;
  }
  LegendEntry next = {kLeft, 0};
  for (const Curve& curve : chart.curves) {
    const double width = 50 + estimated_width(curve.name);
    if (next.x > kLeft && next.x + width > kWidth) {
      next = {kLeft, next.row + 1};
    }
    entries.push_back(next);
    next.x += width;
  }
  return entries;
}

std::string legend_svg(const LineChart& chart,
                       const std::vector<LegendEntry>& entries,
                       double top) {
  std::string out;
  for (size_t i = 0; i < entries.size(); ++i) {
    const double x = entries[i].x;
    const double y = top + kLegendRowHeight * (entries[i].row + 0.5);
    out += svg_line(x, y - 4, x + 22, y - 4, stroke_of(i));
    out += svg_text(x + 28, y, "fill=\"#222222\"", chart.curves[i].name);
  }
  return out;
}

}  // namespace

std::string line_chart_svg(const LineChart& chart) {
  const std::vector<LegendEntry> legend = legend_layout(chart);
  const double legend_top = kTop + (chart.title.empty() ? 0 : kTitleHeight);
  const double legend_height = legend.empty() ? 0 : kLegendRowHeight * (legend.back().row + 1);
  Frame frame = {chart_axes(chart), legend_top + legend_height};
  frame.axes.y.round_ends(kNumTicks);
  std::string out = svg_opening(kWidth, frame.bottom() + kBottom, chart.title);
  if (!chart.title.empty()) {
    const std::string style = "font-size=\"15\" font-weight=\"600\" fill=\"#222222\"";
    out += svg_text(kLeft, kTop + 10, style, chart.title);
  }
  out += legend_svg(chart, legend, legend_top);
  out += axes_svg(chart, frame);
  for (size_t i = 0; i < chart.curves.size(); ++i) {
    out += curve_svg(chart.curves[i], i, frame);
  }
  out += marks_svg(chart, frame);
  if (frame.axes.is_empty) {
    const std::string style = "text-anchor=\"middle\" fill=\"#666666\"";
    out += svg_text(frame.centre_x(), frame.centre_y(), style, "no data");
  }
  return out + "</svg>\n";
}

}  // namespace penstock::report
