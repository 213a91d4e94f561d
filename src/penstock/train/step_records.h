// What the steps of a run took: the median of all, and the last few in full.
#pragma once

#include <deque>
#include <vector>

#include "penstock/program/simulate.h"

namespace penstock::train {

class StepRecords {
 public:
  // `updates`: as many steps ran at once; only those of the most at once are kept in full.
  void add(const program::Timeline& step, int64_t updates = 1);

  // Of all steps but the first, which warms up; of that one when there is no other. 0: none.
  double median_seconds() const;

  // The one of median length among the last nine. Nothing: none yet.
  const program::Timeline* median() const;

 private:
  std::vector<double> seconds_;
  std::deque<program::Timeline> last_;
  int64_t most_updates_ = 0;
};

}  // namespace penstock::train
