#include <algorithm>

#include "penstock/report/chart_axes.h"
#include "penstock/report/dot_grid.h"
#include "penstock/report/line_chart.h"
#include "penstock/report/text_width.h"

namespace penstock::report {

namespace {

constexpr int kLeastWidth = 24, kLeastHeight = 8;
constexpr size_t kColumnsPerTick = 12, kRowsPerTick = 3;

std::string centred(const std::string& text, size_t width) {
  const size_t present = text_width(text);
  return pad_right("", present < width ? (width - present) / 2 : 0) + text;
}

// The plot with the y axis to its left, whose labels take `margin` columns.
std::vector<std::string> plot_lines(const ChartAxes& axes,
                                    const std::vector<Tick>& y_ticks,
                                    const DotGrid& grid,
                                    size_t margin) {
  std::vector<std::string> labels(grid.rows());
  for (const Tick& tick : y_ticks) {
    labels[grid.row_of(axes.y.position(tick.value))] = cut_to_width(tick.label, margin);
  }
  std::vector<std::string> lines;
  for (size_t row = 0; row < grid.rows(); ++row) {
    const bool is_note = axes.is_empty && row == grid.rows() / 2;
    lines.push_back(pad_left(labels[row], margin) + (labels[row].empty() ? " │" : " ┤") +
                    (is_note ? centred("no data", grid.columns()) : grid.row_text(row)));
  }
  return lines;
}

// "└──┬────┬──" and the labels below it, of which those are left out that would run into another.
std::vector<std::string> x_axis_lines(const ChartAxes& axes, const DotGrid& grid, size_t margin) {
  const size_t left = margin + 2;
  std::vector<bool> has_tick(grid.columns(), false);
  std::string labels;
  for (const Tick& tick : axes.x.ticks(static_cast<int>(grid.columns() / kColumnsPerTick))) {
    const size_t column = grid.column_of(axes.x.position(tick.value));
    const size_t width = text_width(tick.label);
    const size_t centre = left + column;
    // At the right end a label moves left, to stay within the chart.
    const size_t begin =
        std::min(centre - std::min(width / 2, centre), left + grid.columns() - width);
    if (labels.empty() || begin > labels.size()) {
      has_tick[column] = true;
      labels = pad_right(labels, begin) + tick.label;
    }
  }
  std::string rule = pad_left("", margin + 1) + "└";
  for (const bool is_tick : has_tick) {
    rule += is_tick ? "┬" : "─";
  }
  return {rule, labels};
}

void draw_curve(const Curve& curve, const ChartAxes& axes, DotGrid& grid) {
  for (const std::vector<Point>& run : runs_of(curve, axes)) {
    for (size_t i = 0; i < run.size(); ++i) {
      grid.draw_line(run[i > 0 ? i - 1 : 0], run[i]);  // the first point is a line to itself
    }
  }
}

// The chart as far as it is drawn in text.
LineChart first_curve_of(const LineChart& chart) {
  LineChart out = {chart.title, chart.x_label, chart.y_label, chart.log_x};
  if (!chart.curves.empty()) {
    out.curves.push_back(chart.curves[0]);
  }
  return out;
}

}  // namespace

std::string line_chart_text(const LineChart& whole_chart, int width, int height) {
  const LineChart chart = first_curve_of(whole_chart);
  const size_t columns = static_cast<size_t>(std::max(width, kLeastWidth));
  // The x axis takes two lines, the title and the axes' names one each where there are any.
  const int num_texts = !chart.title.empty() + !chart.y_label.empty() + !chart.x_label.empty();
  const size_t rows = static_cast<size_t>(std::max(height, kLeastHeight) - 2 - num_texts);
  const int num_y_ticks = static_cast<int>(std::max<size_t>(rows / kRowsPerTick, 2));

  const ChartAxes axes = chart_axes(chart);
  const std::vector<Tick> y_ticks = axes.y.ticks(num_y_ticks);
  size_t margin = 0;
  for (const Tick& tick : y_ticks) {
    margin = std::max(margin, std::min(text_width(tick.label), columns / 2));
  }
  DotGrid grid(columns - margin - 2, rows);
  if (!chart.curves.empty()) {
    draw_curve(chart.curves[0], axes, grid);
  }

  std::string out;
  const auto append = [&](const std::string& line) {
    const std::string fitted = cut_to_width(line, columns);
    out += fitted.substr(0, fitted.find_last_not_of(' ') + 1) + "\n";
  };
  if (!chart.title.empty()) {
    append(centred(chart.title, columns));
  }
  if (!chart.y_label.empty()) {
    append(chart.y_label);
  }
  for (const std::string& line : plot_lines(axes, y_ticks, grid, margin)) {
    append(line);
  }
  for (const std::string& line : x_axis_lines(axes, grid, margin)) {
    append(line);
  }
  if (!chart.x_label.empty()) {
    append(centred(chart.x_label, columns));
  }
  return out;
}

}  // namespace penstock::report
