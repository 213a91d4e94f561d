// What the steps of a run took: the median of all, and the last few in full.
#pragma once

#include <deque>
#include <vector>

#include "penstock/program/simulate.h"

namespace penstock::train {

class StepRecords {
 public:
  void add(const program::Timeline& step);

  // Of all steps but the first, which warms up; of that one when there is no other. 0: none.
  double median_seconds() const;

  // The one of median length among the last nine. Nothing: none yet.
  const program::Timeline* median() const;

 private:
  std::vector<double> seconds_;
  std::deque<program::Timeline> last_;
};

}  // namespace penstock::train
