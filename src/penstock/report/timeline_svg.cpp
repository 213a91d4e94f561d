#include "penstock/report/timeline_svg.h"

#include <algorithm>

#include "penstock/base/text.h"
#include "penstock/report/layer_table.h"
#include "penstock/report/svg.h"
#include "penstock/report/timeline_bars.h"
#include "penstock/report/timeline_layout.h"
#include "penstock/report/timeline_memory.h"

namespace penstock::report {

namespace {

constexpr int kNumTimeTicks = 10;

// What was measured comes first, as it is what happened.
std::string step_text(const StepPicture& picture, bool is_bare) {
  const int32_t updates = picture.program.updates;
  const std::string predicted = cat(time_text(picture.predicted.seconds, is_bare), " predicted");
  const std::string noun =
      cat(step_noun(picture.program), updates > 1 ? " (black lines) in " : " ");
  return picture.measured == nullptr
             ? noun + predicted
             : cat(noun,
                   time_text(picture.measured->seconds, is_bare),
                   " measured, ",
                   predicted,
                   " (ratio ",
                   ratio_text(picture.predicted.seconds, picture.measured->seconds),
                   ")");
}

std::string summary(const StepPicture& picture) {
  std::string text = step_text(picture, is_bare(picture.program));
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
  double y = kPictureMargin + 10;
  if (!picture.title.empty()) {
    const std::string style = cat("font-size=\"15\" font-weight=\"600\" ", svg_ink(kInk));
    out += svg_text(kPictureMargin, y, style, picture.title);
    y += kTitleHeight;
  }
  return out + svg_text(kPictureMargin, y, svg_ink(kFaintInk), summary(picture));
}

std::string legend_svg(const Layout& layout) {
  std::string out;
  for (const LegendEntry& entry : layout.legend) {
    out += svg_rect(entry.left, entry.top, 12, 12, entry.fill);
    out += svg_text(entry.left + 18, entry.top + 10.5, svg_ink(kInk), entry.name);
  }
  return out;
}

std::string names_svg(const Layout& layout) {
  std::string out;
  for (const NameEntry& entry : layout.names) {
    const std::string style = cat("font-size=\"11.5\" ", svg_ink(kInk));
    out += svg_text(entry.left, entry.baseline, style, entry.text.name);
    const std::string faint = cat("font-size=\"11.5\" ", svg_ink(kFaintInk));
    out += svg_text(entry.left + 36, entry.baseline, faint, entry.text.meaning);
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

// Bubbles that cannot be seen are not drawn: a measured step has thousands between instructions.
std::string bubbles_svg(const Layout& layout, const Lane& lane, const Bubbles& bubbles, bool bare) {
  constexpr double kNarrowest = 1.5;  // pixels
  std::string out;
  for (const Bubble& bubble : bubbles.all) {
    const double left = layout.pixel_x(bubble.start), right = layout.pixel_x(bubble.end);
    if (right - left >= kNarrowest) {
      out += cat("<rect x=\"",
                 svg_pixels(left),
                 "\" y=\"",
                 svg_pixels(lane.top),
                 "\" width=\"",
                 svg_pixels(right - left),
                 "\" height=\"",
                 svg_pixels(lane.height),
                 "\" fill=\"",
                 kIdleFill,
                 "\"><title>idle for ",
                 time_text(bubble.end - bubble.start, bare),
                 "</title></rect>\n");
    }
  }
  return out;
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

BarLane bars_of(const StepPicture& picture,
                const Layout& layout,
                const Lane& lane,
                const std::vector<BarKind>& kinds) {
  const program::Timeline* own = lane.is_measured ? picture.measured : &picture.predicted;
  const program::Timeline* other = lane.is_measured ? &picture.predicted : picture.measured;
  return {picture.program,
          picture.program.ranks[lane.rank],
          kinds,
          own->ranks[lane.rank].spans,
          other != nullptr ? &other->ranks[lane.rank].spans : nullptr,
          lane.is_measured ? "predicted" : "measured",
          lane.resource,
          is_bare(picture.program),
          lane.height,
          [&layout](double seconds) { return layout.pixel_x(seconds); }};
}

std::string lane_svg(const StepPicture& picture, const Layout& layout, size_t index) {
  const Lane& lane = layout.lanes[index];
  const std::vector<BarKind> kinds = bar_kinds(picture.program.ranks[lane.rank]);
  const BarLane bars = bars_of(picture, layout, lane, kinds);
  const bool is_low = is_low_lane(lane.resource);
  const double font = is_low ? std::clamp(lane.height, 9.0, 12.0) : std::min(12.0, lane.height - 1);
  const std::string style = cat("font-size=\"",
                                svg_pixels(font),
                                "\" ",
                                svg_ink(lane.is_measured || is_low ? kFaintInk : kInk, "end"));
  const std::string label =
      with_bubble_share(lane_label(picture, layout, lane), layout.bubbles[index]);
  return svg_text(kPlotLeft - 8, lane.top + lane.height / 2 + 0.35 * font, style, label) +
         svg_rect(kPlotLeft, lane.top, kPlotWidth, lane.height, "#f3f4f6") +
         bubbles_svg(layout, lane, layout.bubbles[index], bars.is_bare) +
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
    out += svg_text(x, y + 18, svg_ink("#444444", "middle"), tick.label);
    for (size_t rank = 0; rank < layout.num_panels; ++rank) {
      const double top = layout.panel_top(rank);
      out += svg_line(x, top, x, top + layout.panel_height, "stroke=\"#eceef1\"");
    }
  }
  out += svg_line(kPlotLeft, y, kPictureWidth - kPlotRight, y, "stroke=\"#666666\"");
  return out + svg_text(kPlotLeft - 8, y + 18, svg_ink("#444444", "end"), layout.time.unit);
}

}  // namespace

TimelineDrawing draw_timeline(const StepPicture& picture) {
  check_picture(picture);
  const Layout layout = layout_of(picture);
  std::string out = heading_svg(picture);
  out += legend_svg(layout);
  for (size_t lane = 0; lane < layout.lanes.size(); ++lane) {
    out += lane_svg(picture, layout, lane);
  }
  out += time_axis_svg(layout);
  for (size_t rank = 0; rank < layout.num_panels; ++rank) {
    out += memory_panel_svg(picture, layout, rank);
  }
  return {out + names_svg(layout), layout.bottom() + kPictureMargin};
}

std::string timeline_svg_opening(double height, std::string_view title) {
  return svg_opening(kPictureWidth, height, title) +
         "<defs><pattern id=\"idle\" width=\"6\" height=\"6\" "
         "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
         "<rect width=\"6\" height=\"6\" fill=\"#ffffff\"/>"
         "<rect width=\"2\" height=\"6\" fill=\"#b9c0c9\"/></pattern></defs>\n";
}

std::string timeline_svg(const StepPicture& picture) {
  const TimelineDrawing drawing = draw_timeline(picture);
  return timeline_svg_opening(drawing.height, picture.title) + drawing.elements + "</svg>\n";
}

}  // namespace penstock::report
