#include "penstock/report/held_bytes.h"

#include <algorithm>

#include "penstock/report/memory_events.h"

namespace penstock::report {

namespace {

using program::MemoryPoint;

HeldBytes held_during(const program::Span& span, const std::vector<MemoryPoint>& curve) {
  const auto starts_later = std::upper_bound(
      curve.begin(), curve.end(), span.start, [](double seconds, const MemoryPoint& point) {
        return seconds < point.seconds;
      });
  if (starts_later == curve.begin()) {
    return {};
  }
  const auto first = starts_later - 1;  // in force when the instruction starts
  const bool has_previous = first != curve.begin() && first->seconds == span.start;
  HeldBytes held = {(has_previous ? first - 1 : first)->bytes, first->bytes, first->bytes};
  auto point = starts_later;
  for (; point != curve.end() && point->seconds < span.end; ++point) {
    held.during = std::max(held.during, point->bytes);
    held.after = point->bytes;
  }
  if (point != curve.end() && point->seconds == span.end) {
    held.after = point->bytes;
  }
  return held;
}

}  // namespace

std::vector<HeldBytes> predicted_bytes(const program::RankProgram& rank,
                                       const program::RankTimeline& predicted) {
  std::vector<HeldBytes> all(rank.instructions.size());
  int64_t held = rank.persistent_bytes() + rank.bytes_of(rank.given);
  for (const MemoryEvent& event : memory_events(predicted)) {
    const program::Instruction& instruction = rank.instructions[event.instruction];
    HeldBytes& around = all[event.instruction];
    if (event.is_start) {
      around.before = held;
      held += instruction.working_bytes;
      around.during = held;
    } else {
      held += rank.bytes_of(instruction.makes) - rank.bytes_of(instruction.frees) -
              instruction.working_bytes;
      around.after = held;
    }
  }
  return all;
}

std::vector<HeldBytes> measured_bytes(const program::RankTimeline& measured) {
  std::vector<HeldBytes> all;
  all.reserve(measured.spans.size());
  for (const program::Span& span : measured.spans) {
    all.push_back(held_during(span, measured.memory));
  }
  return all;
}

}  // namespace penstock::report
