#include "penstock/report/timeline_memory.h"

#include <algorithm>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/memory_path.h"
#include "penstock/report/svg.h"

namespace penstock::report {

namespace {

constexpr std::string_view kPredicted = "#5b6470", kMeasured = "#d55e00";

bool names_limit(const StepPicture& picture, const Layout& layout, size_t rank) {
  return shows_limit(picture, rank) && layout.panel_height >= kRoomForLimit;
}

std::string peak_text(const StepPicture& picture, const Layout& layout, size_t rank) {
  const program::RankTimeline& predicted = picture.predicted.ranks[rank];
  std::string text = cat("peak ", format_bytes(predicted.peak_bytes), " predicted");
  if (picture.measured != nullptr) {
    text += cat(", ", format_bytes(picture.measured->ranks[rank].peak_bytes), " measured");
  }
  if (predicted.peak_instruction >= 0) {
    const auto index = static_cast<size_t>(predicted.peak_instruction);
    text +=
        cat(", in ",
            program::describe(picture.program, picture.program.ranks[rank].instructions[index]));
  }
  const int64_t limit = picture.program.ranks[rank].limit_bytes;
  if (limit > 0 && !names_limit(picture, layout, rank)) {
    text += cat("; limit ", format_bytes(limit));
  }
  return text;
}

std::string limit_svg(const StepPicture& picture, const Layout& layout, size_t rank) {
  if (!shows_limit(picture, rank)) {
    return "";
  }
  const int64_t limit = picture.program.ranks[rank].limit_bytes;
  const double y = layout.pixel_y(rank, static_cast<double>(limit));
  const std::string name = cat("limit ", format_bytes(limit));
  return svg_line(kPlotLeft,
                  y,
                  kPictureWidth - kPlotRight,
                  y,
                  "stroke=\"#222222\" stroke-width=\"1.3\" stroke-dasharray=\"6 4\"") +
         (names_limit(picture, layout, rank)
              ? svg_text(kPictureWidth - kPlotRight - 4, y - 4, svg_ink(kInk, "end"), name)
              : "");
}

// What is held all the time is darker than the rest of the curve's area.
std::string residents_svg(const StepPicture& picture, const Layout& layout, size_t rank) {
  const program::RankProgram& program = picture.program.ranks[rank];
  const double bottom = layout.panel_top(rank) + layout.panel_height;
  const double y = layout.pixel_y(rank, static_cast<double>(program.persistent_bytes()));
  const double right = layout.pixel_x(picture.predicted.seconds);
  std::string out =
      svg_rect(kPlotLeft, y, right - kPlotLeft, bottom - y, "#5b6470\" fill-opacity=\"0.16");
  if (bottom - y >= 18) {
    std::vector<std::string> names;
    for (const program::Held& resident : program::held_by_name(program)) {
      names.push_back(resident.name);
    }
    const std::string text = cat(join(names, ", "), " ", format_bytes(program.persistent_bytes()));
    out += svg_text(kPlotLeft + 8, bottom - 6, svg_ink(kFaintInk), text);
  }
  return out;
}

std::string curve_svg(const program::Timeline& timeline,
                      const Layout& layout,
                      size_t rank,
                      std::string_view style) {
  const PathScale scale = {[&](double seconds) { return layout.pixel_x(seconds); },
                           [&](double bytes) { return layout.pixel_y(rank, bytes); }};
  return cat("<path ",
             style,
             " d=\"",
             memory_path(timeline.ranks[rank].memory, timeline.seconds, scale),
             "\"/>\n");
}

// A line and its name, for each curve; right of the heading.
std::string curve_legend_svg(bool has_measured, double y) {
  double x = kPictureWidth - kPlotRight - (has_measured ? 200 : 98);
  std::string out;
  const auto entry = [&](std::string_view colour, std::string_view name) {
    out += svg_line(x, y - 4, x + 20, y - 4, cat("stroke=\"", colour, "\" stroke-width=\"2\""));
    out += svg_text(x + 26, y, svg_ink(kInk), name);
    x += 102;
  };
  entry(kPredicted, "predicted");
  if (has_measured) {
    entry(kMeasured, "measured");
  }
  return out;
}

std::string panel_axis_svg(const Layout& layout, size_t rank) {
  std::string out;
  const double top = layout.panel_top(rank), bottom = top + layout.panel_height;
  const int about = std::clamp(static_cast<int>(layout.panel_height / 36), 3, 6);
  for (const Tick& tick : layout.bytes.axis.ticks(about)) {
    const double y = layout.pixel_y(rank, tick.value * layout.bytes.unit_size);
    out += svg_line(kPlotLeft, y, kPictureWidth - kPlotRight, y, "stroke=\"#e3e3e3\"");
    out += svg_text(kPlotLeft - 8,
                    y + 4,
                    svg_ink("#444444", "end"),
                    tick.value == 0 ? tick.label : cat(tick.label, " ", layout.bytes.unit));
  }
  return out +
         svg_line(kPlotLeft, bottom, kPictureWidth - kPlotRight, bottom, "stroke=\"#666666\"");
}

}  // namespace

std::string memory_panel_svg(const StepPicture& picture, const Layout& layout, size_t rank) {
  const double heading_y = layout.panel_top(rank) - 8;
  const std::string name = layout.num_panels == 1 ? "memory" : cat("rank ", rank, " memory");
  std::string out = svg_text(kPlotLeft - 8, heading_y, svg_ink(kInk, "end"), name);
  out += svg_text(kPlotLeft, heading_y, svg_ink(kFaintInk), peak_text(picture, layout, rank));
  if (rank == 0) {
    out += curve_legend_svg(picture.measured != nullptr, heading_y);
  }
  out += panel_axis_svg(layout, rank);
  out += curve_svg(picture.predicted,
                   layout,
                   rank,
                   cat("fill=\"#5b6470\" fill-opacity=\"0.16\" stroke=\"", kPredicted, "\""));
  if (picture.measured != nullptr) {
    out += curve_svg(*picture.measured,
                     layout,
                     rank,
                     cat("fill=\"none\" stroke-width=\"1.2\" stroke=\"", kMeasured, "\""));
  }
  out += residents_svg(picture, layout, rank);
  return out + limit_svg(picture, layout, rank);
}
}  // namespace penstock::report
