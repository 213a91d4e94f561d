// Bubbles: where a rank stands idle between the first and the last that its compute lane does.
#pragma once

#include <vector>

#include "penstock/report/step_picture.h"

namespace penstock::report {

struct Bubble {
  double start = 0, end = 0;  // seconds
};

struct Bubbles {
  std::vector<Bubble> all;  // in the order of time
  double share = 0;         // of the time from the first start to the last end

  // Too little to be told apart from rounding is none.
  bool are_worth_a_label() const { return share >= 5e-4; }
};

// What takes no time neither begins nor ends a rank's part of the step.
Bubbles bubbles_of(const program::RankProgram& rank, const program::RankTimeline& timeline);

// "rank 2 (12.3% idle)": the name of the rank's compute lane in one timeline.
std::string with_bubble_share(const std::string& lane, const Bubbles& bubbles);

}  // namespace penstock::report
