#include "penstock/report/memory_events.h"

#include <algorithm>

namespace penstock::report {

std::vector<MemoryEvent> memory_events(const program::RankTimeline& timeline) {
  std::vector<MemoryEvent> events;
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    const program::Span& span = timeline.spans[i];
    events.push_back({span.start, i, true, false});
    events.push_back({span.end, i, false, span.end > span.start});
  }
  std::stable_sort(events.begin(), events.end(), [](const MemoryEvent& a, const MemoryEvent& b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.is_release > b.is_release;
  });
  return events;
}

}  // namespace penstock::report
