#include "penstock/report/timeline_layout.h"

#include <algorithm>
#include <array>
#include <utility>

namespace penstock::report {

namespace {

constexpr double kAxisHeight = 26, kLegendHeight = 26, kLegendRowHeight = 20;
constexpr double kPanelHeadingHeight = 22, kPanelGap = 12;
constexpr double kLetterWidth = 6.4;  // of the 12 px text, on average
constexpr double kNameRowHeight = 17;
constexpr size_t kNameColumns = 3;
constexpr double kLowLane = 0.5;  // of the height of other lanes

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
class LegendWriter {
 public:
  explicit LegendWriter(double top) : top_(top) {}

  void add(std::string_view name, std::string_view fill) {
    const double width = 42 + kLetterWidth * static_cast<double>(name.size());
    if (left_ + width > kPictureWidth - kPictureMargin) {
      left_ = kPictureMargin;
      top_ += kLegendRowHeight;
    }
    entries_.push_back({name, fill, left_, top_});
    left_ += width;
  }
  std::vector<LegendEntry> take() { return std::move(entries_); }

 private:
  double left_ = kPictureMargin, top_ = 0;
  std::vector<LegendEntry> entries_;
};

std::vector<LegendEntry> legend_of(const StepPicture& picture, const Layout& layout, double top) {
  LegendWriter legend(top);
  const std::array<bool, kNumBarKinds> takes_time = kinds_that_take_time(picture);
  for (size_t i = 0; i < kNumBarKinds; ++i) {
    if (takes_time[i]) {
      const BarStyle& style = bar_style(static_cast<BarKind>(i));
      legend.add(style.name, style.fill);
    }
  }
  if (std::any_of(layout.bubbles.begin(), layout.bubbles.end(), [](const Bubbles& bubbles) {
        return bubbles.are_worth_a_label();
      })) {
    legend.add("bubble: idle between its first and last work", kIdleFill);
  }
  return legend.take();
}

std::vector<Bubbles> bubbles_by_lane(const StepPicture& picture, const std::vector<Lane>& lanes) {
  std::vector<Bubbles> bubbles(lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    const program::Timeline& own = lanes[i].is_measured ? *picture.measured : picture.predicted;
    if (lanes[i].resource == program::Resource{}) {
      bubbles[i] = bubbles_of(picture.program.ranks[lanes[i].rank], own.ranks[lanes[i].rank]);
    }
  }
  return bubbles;
}

// Column by column, as a list is read.
std::vector<NameEntry> names_of(const StepPicture& picture, double top) {
  const std::vector<NameMeaning> meanings = name_meanings(picture.program, true);
  const size_t rows = (meanings.size() + kNameColumns - 1) / kNameColumns;
  std::vector<NameEntry> entries;
  for (size_t i = 0; i < meanings.size(); ++i) {
    const double column = static_cast<double>(i / rows), row = static_cast<double>(i % rows);
    const double width = (kPictureWidth - 2 * kPictureMargin) / kNameColumns;
    entries.push_back(
        {meanings[i], kPictureMargin + column * width, top + (row + 1) * kNameRowHeight});
  }
  return entries;
}

// The lanes of one resource are close together, and those between ranks close to their rank's work.
double gap_above(const Lane& lane, double lane_height) {
  return lane.is_measured ? 0 : is_low_lane(lane.resource) ? 1 : lane_height / 3;
}

// Bare numbers have none.
bool has_memory(const StepPicture& picture) {
  const auto holds = [](const program::RankTimeline& rank) { return rank.peak_bytes > 0; };
  const std::vector<program::RankTimeline>& ranks = picture.predicted.ranks;
  return std::any_of(ranks.begin(), ranks.end(), holds) ||
         (picture.measured != nullptr && !is_bare(picture.program));
}

}  // namespace

double Layout::pixel_x(double seconds) const {
  return kPlotLeft + time.position(seconds) * kPlotWidth;
}

double Layout::panel_top(size_t rank) const {
  return panels_top + kPanelHeadingHeight +
         static_cast<double>(rank) * (kPanelHeadingHeight + panel_height + kPanelGap);
}

double Layout::pixel_y(size_t rank, double of_bytes) const {
  return panel_top(rank) + (1 - bytes.position(of_bytes)) * panel_height;
}

double Layout::panels_bottom() const {
  return panels_top +
         static_cast<double>(num_panels) * (kPanelHeadingHeight + panel_height + kPanelGap);
}

// The first column of names is the longest.
double Layout::bottom() const {
  double bottom = panels_bottom();
  for (const NameEntry& entry : names) {
    bottom = std::max(bottom, entry.baseline + 4);
  }
  return bottom;
}

Layout layout_of(const StepPicture& picture) {
  Layout layout = {time_axis(picture), bytes_axis(picture), lanes_of(picture)};
  const double legend_top =
      kPictureMargin + (picture.title.empty() ? 0 : kTitleHeight) + kSummaryHeight;
  layout.bubbles = bubbles_by_lane(picture, layout.lanes);
  layout.legend = legend_of(picture, layout, legend_top);
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
  layout.names = names_of(picture, layout.panels_bottom());
  return layout;
}

}  // namespace penstock::report
