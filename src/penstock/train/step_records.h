// What the steps of a run took: the median of all, and the last few in full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "penstock/program/simulate.h"

namespace penstock::train {

struct StepRecord {
  program::Timeline timeline;  // of this rank alone
  double began_s = 0;          // on this rank's steady clock
};

class StepRecords {
 public:
  // `updates`: as many steps ran at once; only those of the most at once count.
  void add(const StepRecord& step, int64_t updates = 1);

  // Of one step, of all runs but the first, which warms up; of that one when there is no other. 0:
  // none.
  double median_seconds() const;
  size_t count() const { return taken_.size(); }

  // The last nine, oldest first: of the same steps at every rank.
  const std::deque<StepRecord>& last() const { return last_; }
  int64_t updates_of_last() const { return most_updates_; }  // of each of them
  // The one of median length among them. Nothing: none yet.
  std::optional<size_t> median() const;

 private:
  struct Taken {
    double seconds = 0;  // of one step
    int64_t updates = 1;
  };
  std::vector<Taken> taken_;
  std::deque<StepRecord> last_;
  int64_t most_updates_ = 0;
};

}  // namespace penstock::train
