#include "penstock/report/comparison.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/layer_table.h"
#include "penstock/report/step_scale.h"
#include "penstock/report/svg.h"
#include "penstock/report/table.h"
#include "penstock/report/timeline_data.h"
#include "penstock/report/timeline_html.h"
#include "penstock/report/timeline_layout.h"
#include "penstock/report/timeline_svg.h"

namespace penstock::report {

namespace {

using Format = std::function<std::string(double)>;

// Below this, relative to what is compared, there is rounding alone.
constexpr double kRounding = 1e-9;

std::string signed_text(double a, double b, const Format& format) {
  const double difference = b - a;
  if (std::abs(difference) <= kRounding * std::max(std::abs(a), std::abs(b))) {
    return "same";
  }
  return (difference < 0 ? "-" : "+") + format(std::abs(difference));
}

double bubble_of(const program::Timeline& timeline) {
  const double bubble = timeline.seconds > 0 ? 1 - computing_share(timeline) : 0;
  return bubble < kRounding ? 0 : bubble;
}

class RowWriter {
 public:
  void add(const std::string& name, double a, double b, const Format& format) {
    if (a != 0 || b != 0) {
      rows_.push_back({name, format(a), format(b), signed_text(a, b, format), ratio_text(a, b)});
    }
  }
  // One that is there on one side alone.
  void add_lone(const std::string& name, const std::string& a, const std::string& b) {
    rows_.push_back({name, a, b, "-", "-"});
  }
  std::vector<std::vector<std::string>> take() { return std::move(rows_); }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string bytes_text(double bytes) {
  return format_bytes(static_cast<int64_t>(bytes));
}

std::string count_text(double count) {
  return format_count(static_cast<int64_t>(count));
}

void add_peaks(const StepFigures& a, const StepFigures& b, RowWriter& rows) {
  const size_t common = std::min(a.peak_bytes.size(), b.peak_bytes.size());
  for (size_t rank = 0; rank < std::max(a.peak_bytes.size(), b.peak_bytes.size()); ++rank) {
    const std::string name = cat("peak of rank ", rank);
    const auto lone = [&](const StepFigures& one) {
      return rank < one.peak_bytes.size() ? format_bytes(one.peak_bytes[rank]) : "no such rank";
    };
    if (rank < common) {
      rows.add(name,
               static_cast<double>(a.peak_bytes[rank]),
               static_cast<double>(b.peak_bytes[rank]),
               bytes_text);
    } else {
      rows.add_lone(name, lone(a), lone(b));
    }
  }
}

// Both on the same axes: what is longer takes longer.
std::pair<StepPicture, StepPicture> on_same_axes(const StepPicture& a, const StepPicture& b) {
  PENSTOCK_CHECK(is_bare(a.program) == is_bare(b.program), "bare numbers beside seconds");
  std::pair<StepPicture, StepPicture> both{a, b};
  both.first.title = cat("A: ", a.title);
  both.second.title = cat("B: ", b.title);
  int64_t bytes = 0;
  for (const StepPicture* one : {&a, &b}) {
    for (size_t rank = 0; rank < one->program.ranks.size(); ++rank) {
      bytes = std::max({bytes,
                        most_bytes(*one, rank),
                        shows_limit(*one, rank) ? one->program.ranks[rank].limit_bytes : 0});
    }
  }
  for (StepPicture* one : {&both.first, &both.second}) {
    one->shown_seconds = std::max(a.last().seconds, b.last().seconds);
    one->shown_bytes = bytes;
  }
  return both;
}

std::string nested_svg(const TimelineDrawing& drawing, double top) {
  return cat("<svg x=\"0\" y=\"",
             svg_pixels(top),
             "\" width=\"",
             svg_pixels(kPictureWidth),
             "\" height=\"",
             svg_pixels(drawing.height),
             "\">\n",
             drawing.elements,
             "</svg>\n");
}

}  // namespace

int64_t StepFigures::num_instructions() const {
  return std::accumulate(instructions.begin(), instructions.end(), int64_t{0});
}

StepFigures figures_of(const StepPicture& picture) {
  check_picture(picture);
  StepFigures figures;
  figures.seconds = picture.predicted.seconds / std::max(1, picture.program.updates);
  figures.bubble = bubble_of(picture.predicted);
  for (size_t r = 0; r < picture.program.ranks.size(); ++r) {
    const program::RankProgram& rank = picture.program.ranks[r];
    figures.peak_bytes.push_back(picture.predicted.ranks[r].peak_bytes);
    figures.sent_bytes += rank.sent_bytes();
    for (const BarKind kind : bar_kinds(rank)) {
      figures.recomputed_forwards += kind == BarKind::ForwardAgain;
    }
    for (const program::Instruction& instruction : rank.instructions) {
      ++figures.instructions[static_cast<size_t>(instruction.op)];
    }
  }
  return figures;
}

DifferenceTable difference_table(const StepPicture& a, const StepPicture& b) {
  const StepFigures in_a = figures_of(a), in_b = figures_of(b);
  const bool bare = is_bare(a.program);
  RowWriter rows;
  rows.add(
      "step", in_a.seconds, in_b.seconds, [&](double seconds) { return time_text(seconds, bare); });
  rows.add("bubble", in_a.bubble, in_b.bubble, percent_text);
  if (!bare) {
    add_peaks(in_a, in_b, rows);
  }
  rows.add("recomputed forwards",
           static_cast<double>(in_a.recomputed_forwards),
           static_cast<double>(in_b.recomputed_forwards),
           count_text);
  rows.add("sent by all ranks",
           static_cast<double>(in_a.sent_bytes),
           static_cast<double>(in_b.sent_bytes),
           bytes_text);
  rows.add("instructions",
           static_cast<double>(in_a.num_instructions()),
           static_cast<double>(in_b.num_instructions()),
           count_text);
  for (size_t op = 0; op < program::kNumOps; ++op) {
    rows.add(cat("of them ", program::op_name(static_cast<program::Op>(op))),
             static_cast<double>(in_a.instructions[op]),
             static_cast<double>(in_b.instructions[op]),
             count_text);
  }
  return {{"", "A", "B", "B - A", "B / A"}, rows.take()};
}

std::string comparison_text(const StepPicture& a, const StepPicture& b) {
  const DifferenceTable differences = difference_table(a, b);
  std::vector<Column> columns;
  for (const std::string& heading : differences.headings) {
    columns.push_back({heading, columns.empty() ? Align::Left : Align::Right});
  }
  Table table(columns);
  for (const std::vector<std::string>& row : differences.rows) {
    table.add_row(row);
  }
  return cat("A: ", a.title, "\nB: ", b.title, "\n\n", table.text());
}

std::string comparison_svg(const StepPicture& a, const StepPicture& b) {
  const auto [first, second] = on_same_axes(a, b);
  const TimelineDrawing above = draw_timeline(first), below = draw_timeline(second);
  return cat(timeline_svg_opening(above.height + below.height, cat(a.title, " beside ", b.title)),
             nested_svg(above, 0),
             nested_svg(below, above.height),
             "</svg>\n");
}

std::string comparison_html(const StepPicture& a, const StepPicture& b) {
  const auto [first, second] = on_same_axes(a, b);
  const DifferenceTable differences = difference_table(a, b);
  const nlohmann::json table = {{"headings", differences.headings}, {"rows", differences.rows}};
  return filled_page(cat(a.title, " beside ", b.title),
                     cat("{\"differences\":",
                         embedded_json(table),
                         ",\n\"steps\":[",
                         timeline_data(first),
                         ",\n",
                         timeline_data(second),
                         "]}"));
}

}  // namespace penstock::report
