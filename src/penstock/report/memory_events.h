// When instructions begin and end to hold memory, in the order in which simulate() counts it.
#pragma once

#include <cstddef>
#include <vector>

#include "penstock/program/simulate.h"

namespace penstock::report {

struct MemoryEvent {
  double seconds = 0;
  size_t instruction = 0;
  bool is_start = false;
  bool is_release = false;  // the end of an instruction that took time
};

// At one moment ends come before starts, and instructions that take no time begin and end in the
// order of the list.
std::vector<MemoryEvent> memory_events(const program::RankTimeline& timeline);

}  // namespace penstock::report
