#include "penstock/report/timeline_svg.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/layer_table.h"
#include "penstock/report/memory_path.h"
#include "penstock/report/step_scale.h"
#include "penstock/report/svg.h"
#include "penstock/report/timeline_bars.h"

namespace penstock::report {

namespace {

// Pixels.
constexpr double kWidth = 1120, kLeft = 132, kRight = 24, kMargin = 16;
constexpr double kTitleHeight = 26, kSummaryHeight = 22, kAxisHeight = 26;
constexpr double kLegendHeight = 26, kLegendRowHeight = 20;
constexpr double kPanelHeadingHeight = 22, kPanelGap = 12;
constexpr double kRoomForLimit = 120;  // panels as high as this have its name at its line
constexpr double kLetterWidth = 6.4;   // of the 12 px text, on average

constexpr double kLowLane = 0.5;  // of the height of other lanes
constexpr int kNumTimeTicks = 10;

constexpr std::string_view kInk = "#222222", kFaintInk = "#5b6470";
constexpr std::string_view kPredicted = "#5b6470", kMeasured = "#d55e00";

struct Lane {
  size_t rank = 0;
  program::Resource resource;
  bool is_measured = false;
  double top = 0, height = 0;
};

struct LegendEntry {
  BarKind kind = BarKind::Forward;
  double left = 0, top = 0;
};

// Where everything is.
struct Layout {
  UnitAxis time, bytes;
  std::vector<Lane> lanes;
  std::vector<LegendEntry> legend;
  double lanes_bottom = 0;
  double panels_top = 0, panel_height = 0;  // of the curve alone
  size_t num_panels = 0;

  double pixel_x(double seconds) const {
    return kLeft + time.position(seconds) * (kWidth - kRight - kLeft);
  }
  double panel_top(size_t rank) const {
    return panels_top + kPanelHeadingHeight +
           static_cast<double>(rank) * (kPanelHeadingHeight + panel_height + kPanelGap);
  }
  double pixel_y(size_t rank, double of_bytes) const {
    return panel_top(rank) + (1 - bytes.position(of_bytes)) * panel_height;
  }
  double bottom() const {
    return panels_top +
           static_cast<double>(num_panels) * (kPanelHeadingHeight + panel_height + kPanelGap);
  }
};

// Few lanes are high enough for names, many are low enough for a page.
double lane_height_for(const std::vector<Lane>& lanes) {
  double count = 0;
  for (const Lane& lane : lanes) {
    count += is_low_lane(lane.resource) ? kLowLane / 2 : 1;
  }
  return count <= 4 ? 26 : count <= 16 ? 18 : 12;
}

double panel_height_for(size_t num_ranks) {
  return num_ranks <= 1 ? 200 : num_ranks <= 2 ? 130 : num_ranks <= 8 ? 84 : 48;
}

// Messages that take no time have no lane.
bool is_empty_lane(const StepPicture& picture, size_t rank, program::Resource resource) {
  const auto seconds = [&](const program::Timeline& timeline) {
    const auto busy = timeline.ranks[rank].busy_seconds.find(resource);
    return busy == timeline.ranks[rank].busy_seconds.end() ? 0 : busy->second;
  };
  return is_low_lane(resource) && seconds(picture.predicted) == 0 &&
         (picture.measured == nullptr || seconds(*picture.measured) == 0);
}

std::vector<Lane> lanes_of(const StepPicture& picture) {
  std::vector<Lane> lanes;
  for (size_t rank = 0; rank < picture.program.ranks.size(); ++rank) {
    for (const program::Resource resource : resources_of(picture.program.ranks[rank])) {
      if (is_empty_lane(picture, rank, resource)) {
        continue;
      }
      lanes.push_back({rank, resource, false});
      if (picture.measured != nullptr) {
        lanes.push_back({rank, resource, true});
      }
    }
  }
  return lanes;
}

std::array<bool, kNumBarKinds> kinds_that_take_time(const StepPicture& picture) {
  std::array<bool, kNumBarKinds> takes_time = {};
  for (size_t rank = 0; rank < picture.program.ranks.size(); ++rank) {
    const std::vector<BarKind> kinds = bar_kinds(picture.program.ranks[rank]);
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (duration(picture.predicted.ranks[rank].spans[i]) > 0 ||
          (picture.measured != nullptr && duration(picture.measured->ranks[rank].spans[i]) > 0)) {
        takes_time[static_cast<size_t>(kinds[i])] = true;
      }
    }
  }
  return takes_time;
}

// In as many rows as it takes.
std::vector<LegendEntry> legend_of(const StepPicture& picture, double top) {
  const std::array<bool, kNumBarKinds> takes_time = kinds_that_take_time(picture);
  std::vector<LegendEntry> entries;
  double left = kMargin;
  for (size_t i = 0; i < kNumBarKinds; ++i) {
    if (takes_time[i]) {
      const auto kind = static_cast<BarKind>(i);
      const double width = 42 + kLetterWidth * static_cast<double>(bar_style(kind).name.size());
      if (left + width > kWidth - kMargin) {
        left = kMargin;
        top += kLegendRowHeight;
      }
      entries.push_back({kind, left, top});
      left += width;
    }
  }
  return entries;
}

// The lanes of one resource are close together, and those between ranks close to their rank's work.
double gap_above(const Lane& lane, double lane_height) {
  return lane.is_measured ? 0 : is_low_lane(lane.resource) ? 1 : lane_height / 3;
}

// A pipeline of bare numbers has none.
bool has_memory(const StepPicture& picture) {
  const auto holds = [](const program::RankTimeline& rank) { return rank.peak_bytes > 0; };
  const std::vector<program::RankTimeline>& ranks = picture.predicted.ranks;
  return std::any_of(ranks.begin(), ranks.end(), holds) || picture.measured != nullptr;
}

Layout layout_of(const StepPicture& picture) {
  Layout layout = {time_axis(picture), bytes_axis(picture), lanes_of(picture)};
  const double legend_top = kMargin + (picture.title.empty() ? 0 : kTitleHeight) + kSummaryHeight;
  layout.legend = legend_of(picture, legend_top);
  const double lane_height = lane_height_for(layout.lanes);
  double top = (layout.legend.empty() ? legend_top : layout.legend.back().top) + kLegendHeight + 6;
  bool is_first = true;
  for (Lane& lane : layout.lanes) {
    lane.height = lane_height * (is_low_lane(lane.resource) ? kLowLane : 1);
    lane.top = top + (is_first ? 0 : gap_above(lane, lane_height));
    top = lane.top + lane.height + 1;
    is_first = false;
  }
  layout.lanes_bottom = top;
  layout.panels_top = top + kAxisHeight;
  layout.num_panels = has_memory(picture) ? picture.program.ranks.size() : 0;
  layout.panel_height = panel_height_for(layout.num_panels);
  return layout;
}

std::string rect_svg(double x, double y, double width, double height, std::string_view fill) {
  return cat("<rect x=\"",
             svg_pixels(x),
             "\" y=\"",
             svg_pixels(y),
             "\" width=\"",
             svg_pixels(width),
             "\" height=\"",
             svg_pixels(height),
             "\" fill=\"",
             fill,
             "\"/>\n");
}

std::string ink(std::string_view colour, std::string_view anchor = "start") {
  return cat("text-anchor=\"", anchor, "\" fill=\"", colour, "\"");
}

std::string percent_text(double share) {
  return cat(format_number(std::round(1000 * share) / 10), "%");
}

std::string summary(const StepPicture& picture) {
  const int32_t updates = picture.program.updates;
  std::string text = cat(picture.program.is_evaluation() ? "evaluation "
                         : updates == 1                  ? "step "
                                        : cat(updates, " updates (black lines) in "),
                         format_seconds(picture.predicted.seconds),
                         " predicted");
  if (picture.measured != nullptr) {
    text += cat(", ",
                format_seconds(picture.measured->seconds),
                " measured (ratio ",
                ratio_text(picture.predicted.seconds, picture.measured->seconds),
                ")");
  }
  if (picture.program.ranks.size() > 1) {
    text += cat("; ranks compute ", percent_text(computing_share(picture.predicted)));
    if (picture.measured != nullptr) {
      text += cat(" (", percent_text(computing_share(*picture.measured)), " measured)");
    }
    text += " of the time";
  }
  const StepSums sums = step_sums(picture);
  if (sums.again.predicted > 0) {
    // Of the work of all ranks: the step itself may be shorter than that.
    text += cat("; ",
                percent_text(sums.again.predicted / sums.all.predicted),
                " of the work is recomputed forwards");
  }
  return text;
}

std::string heading_svg(const StepPicture& picture) {
  std::string out;
  double y = kMargin + 10;
  if (!picture.title.empty()) {
    const std::string style = cat("font-size=\"15\" font-weight=\"600\" ", ink(kInk));
    out += svg_text(kMargin, y, style, picture.title);
    y += kTitleHeight;
  }
  return out + svg_text(kMargin, y, ink(kFaintInk), summary(picture));
}

std::string legend_svg(const Layout& layout) {
  std::string out;
  for (const LegendEntry& entry : layout.legend) {
    const BarStyle& style = bar_style(entry.kind);
    out += rect_svg(entry.left, entry.top, 12, 12, style.fill);
    out += svg_text(entry.left + 18, entry.top + 10.5, ink(kInk), style.name);
  }
  return out;
}

std::string lane_label(const StepPicture& picture, const Layout& layout, const Lane& lane) {
  const bool is_alone = layout.num_panels == 1 && layout.lanes.size() <= 2;
  if (is_alone || lane.is_measured) {
    return lane.is_measured ? "measured" : "predicted";
  }
  return lane_name(picture.program, lane.rank, lane.resource);
}

// Where a rank of an asynchronous pipeline moves its weights: what tells these schedules from
// others, and may take next to no time.
std::string updates_svg(const StepPicture& picture, const Layout& layout, const Lane& lane) {
  std::string out;
  if (picture.program.updates == 1 || lane.resource != program::Resource{}) {
    return out;
  }
  const program::Timeline& own = lane.is_measured ? *picture.measured : picture.predicted;
  const std::vector<program::Instruction>& list = picture.program.ranks[lane.rank].instructions;
  for (const program::Span& span : own.ranks[lane.rank].spans) {
    if (list[static_cast<size_t>(span.instruction)].op == program::Op::Step) {
      const double x = layout.pixel_x(span.end);
      out += svg_line(x,
                      lane.top - 3,
                      x,
                      lane.top + lane.height + 3,
                      cat("stroke=\"", kInk, "\" stroke-width=\"2\""));
    }
  }
  return out;
}

std::string lane_svg(const StepPicture& picture, const Layout& layout, const Lane& lane) {
  const program::RankProgram& rank = picture.program.ranks[lane.rank];
  const program::Timeline* own = lane.is_measured ? picture.measured : &picture.predicted;
  const program::Timeline* other = lane.is_measured ? &picture.predicted : picture.measured;
  const std::vector<BarKind> kinds = bar_kinds(rank);
  const BarLane bars = {picture.program,
                        rank,
                        kinds,
                        own->ranks[lane.rank].spans,
                        other != nullptr ? &other->ranks[lane.rank].spans : nullptr,
                        lane.is_measured ? "predicted" : "measured",
                        lane.resource,
                        lane.height,
                        [&](double seconds) { return layout.pixel_x(seconds); }};
  const bool is_low = is_low_lane(lane.resource);
  const double font = is_low ? std::clamp(lane.height, 7.0, 12.0) : std::min(12.0, lane.height - 1);
  const std::string style = cat("font-size=\"",
                                svg_pixels(font),
                                "\" ",
                                ink(lane.is_measured || is_low ? kFaintInk : kInk, "end"));
  return svg_text(kLeft - 8,
                  lane.top + lane.height / 2 + 0.35 * font,
                  style,
                  lane_label(picture, layout, lane)) +
         rect_svg(kLeft, lane.top, kWidth - kRight - kLeft, lane.height, "#f3f4f6") +
         cat("<g transform=\"translate(0 ",
             svg_pixels(lane.top),
             ")\">\n",
             bars_svg(bars),
             "</g>\n") +
         updates_svg(picture, layout, lane);
}

std::string time_axis_svg(const Layout& layout) {
  std::string out;
  const double y = layout.lanes_bottom + 1;
  for (const Tick& tick : layout.time.axis.ticks(kNumTimeTicks)) {
    const double x = layout.pixel_x(tick.value * layout.time.unit_size);
    out += svg_line(x, y, x, y + 5, "stroke=\"#666666\"");
    out += svg_text(x, y + 18, ink("#444444", "middle"), tick.label);
    for (size_t rank = 0; rank < layout.num_panels; ++rank) {
      const double top = layout.panel_top(rank);
      out += svg_line(x, top, x, top + layout.panel_height, "stroke=\"#eceef1\"");
    }
  }
  out += svg_line(kLeft, y, kWidth - kRight, y, "stroke=\"#666666\"");
  return out + svg_text(kLeft - 8, y + 18, ink("#444444", "end"), layout.time.unit);
}

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
  return svg_line(kLeft,
                  y,
                  kWidth - kRight,
                  y,
                  "stroke=\"#222222\" stroke-width=\"1.3\" stroke-dasharray=\"6 4\"") +
         (names_limit(picture, layout, rank)
              ? svg_text(kWidth - kRight - 4, y - 4, ink(kInk, "end"), name)
              : "");
}

// What is held all the time is darker than the rest of the curve's area.
std::string residents_svg(const StepPicture& picture, const Layout& layout, size_t rank) {
  const program::RankProgram& program = picture.program.ranks[rank];
  const double bottom = layout.panel_top(rank) + layout.panel_height;
  const double y = layout.pixel_y(rank, static_cast<double>(program.persistent_bytes()));
  const double right = layout.pixel_x(picture.predicted.seconds);
  std::string out = rect_svg(kLeft, y, right - kLeft, bottom - y, "#5b6470\" fill-opacity=\"0.16");
  if (bottom - y >= 18) {
    std::vector<std::string> names;
    for (const program::Held& resident : program::held_by_name(program)) {
      names.push_back(resident.name);
    }
    const std::string text = cat(join(names, ", "), " ", format_bytes(program.persistent_bytes()));
    out += svg_text(kLeft + 8, bottom - 6, ink(kFaintInk), text);
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
  double x = kWidth - kRight - (has_measured ? 200 : 98);
  std::string out;
  const auto entry = [&](std::string_view colour, std::string_view name) {
    out += svg_line(x, y - 4, x + 20, y - 4, cat("stroke=\"", colour, "\" stroke-width=\"2\""));
    out += svg_text(x + 26, y, ink(kInk), name);
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
    out += svg_line(kLeft, y, kWidth - kRight, y, "stroke=\"#e3e3e3\"");
    out += svg_text(kLeft - 8,
                    y + 4,
                    ink("#444444", "end"),
                    tick.value == 0 ? tick.label : cat(tick.label, " ", layout.bytes.unit));
  }
  return out + svg_line(kLeft, bottom, kWidth - kRight, bottom, "stroke=\"#666666\"");
}

std::string panel_svg(const StepPicture& picture, const Layout& layout, size_t rank) {
  const double heading_y = layout.panel_top(rank) - 8;
  const std::string name = layout.num_panels == 1 ? "memory" : cat("rank ", rank, " memory");
  std::string out = svg_text(kLeft - 8, heading_y, ink(kInk, "end"), name);
  out += svg_text(kLeft, heading_y, ink(kFaintInk), peak_text(picture, layout, rank));
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

}  // namespace

std::string timeline_svg(const StepPicture& picture) {
  check_picture(picture);
  const Layout layout = layout_of(picture);
  std::string out = svg_opening(kWidth, layout.bottom() + kMargin, picture.title);
  out += heading_svg(picture);
  out += legend_svg(layout);
  for (const Lane& lane : layout.lanes) {
    out += lane_svg(picture, layout, lane);
  }
  out += time_axis_svg(layout);
  for (size_t rank = 0; rank < layout.num_panels; ++rank) {
    out += panel_svg(picture, layout, rank);
  }
  return out + "</svg>\n";
}

}  // namespace penstock::report
