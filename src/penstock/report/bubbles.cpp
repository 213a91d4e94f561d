#include "penstock/report/bubbles.h"

#include <algorithm>

#include "penstock/base/text.h"

namespace penstock::report {

namespace {

// Those of the compute lane that take time, by their start. A list's order may differ from it: a
// gather at which a rank stands still is in the lane, too.
std::vector<program::Span> compute_spans(const program::RankProgram& rank,
                                         const program::RankTimeline& timeline) {
  std::vector<program::Span> spans;
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    if (rank.instructions[i].resource == program::Resource{} && duration(timeline.spans[i]) > 0) {
      spans.push_back(timeline.spans[i]);
    }
  }
  std::stable_sort(
      spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  return spans;
}

}  // namespace

Bubbles bubbles_of(const program::RankProgram& rank, const program::RankTimeline& timeline) {
  Bubbles bubbles;
  const std::vector<program::Span> spans = compute_spans(rank, timeline);
  if (spans.empty()) {
    return bubbles;
  }
  // Sums of the same seconds in another order differ in their last bits.
  const double least = 1e-9 * spans.back().end;
  double busy_until = spans[0].start, idle = 0;
  for (const program::Span& span : spans) {
    if (span.start - busy_until > least) {
      bubbles.all.push_back({busy_until, span.start});
      idle += span.start - busy_until;
    }
    busy_until = std::max(busy_until, span.end);
  }
  bubbles.share = idle / (busy_until - spans[0].start);
  return bubbles;
}

std::string with_bubble_share(const std::string& lane, const Bubbles& bubbles) {
  return bubbles.are_worth_a_label() ? cat(lane, " (", percent_text(bubbles.share), " idle)")
                                     : lane;
}

}  // namespace penstock::report
