// Where everything of a timeline's picture is, in pixels.
#pragma once

#include <string_view>
#include <vector>

#include "penstock/report/bubbles.h"
#include "penstock/report/step_picture.h"
#include "penstock/report/step_scale.h"
#include "penstock/report/value_legend.h"

namespace penstock::report {

inline constexpr double kPictureWidth = 1148, kPlotLeft = 160, kPlotRight = 24;
inline constexpr double kPictureMargin = 16;
inline constexpr double kPlotWidth = kPictureWidth - kPlotRight - kPlotLeft;
inline constexpr double kTitleHeight = 26, kSummaryHeight = 22;
inline constexpr double kRoomForLimit = 120;  // panels as high have the limit's name at its line

inline constexpr std::string_view kInk = "#222222", kFaintInk = "#5b6470";

// One resource of one rank, in one timeline.
struct Lane {
  size_t rank = 0;
  program::Resource resource;
  bool is_measured = false;
  double top = 0, height = 0;
};

struct LegendEntry {
  std::string_view name, fill;
  double left = 0, top = 0;
};

// What a value's name says, at the bottom.
struct NameEntry {
  NameMeaning text;
  double left = 0, baseline = 0;
};

inline constexpr std::string_view kIdleFill = "url(#idle)";

// The lanes, below them a panel for the memory of each rank, below these the names of values.
struct Layout {
  UnitAxis time, bytes;
  std::vector<Lane> lanes;
  std::vector<Bubbles> bubbles;  // of each lane; none but in compute lanes
  std::vector<LegendEntry> legend;
  std::vector<NameEntry> names;
  double lanes_bottom = 0;
  double panels_top = 0, panel_height = 0;  // of the curve alone
  size_t num_panels = 0;

  double pixel_x(double seconds) const;
  double panel_top(size_t rank) const;
  double pixel_y(size_t rank, double of_bytes) const;
  double panels_bottom() const;
  double bottom() const;
};

Layout layout_of(const StepPicture& picture);

}  // namespace penstock::report
