#include "penstock/schedule/rank_turns.h"

#include <numeric>

namespace penstock::schedule {

void RankTurns::add(Phase phase, int32_t stage, int32_t count) {
  int32_t& next = next_[{phase, stage}];
  for (; count > 0 && next < micro_batches_; --count, ++next) {
    turns_.push_back({phase, stage, next});
  }
}

Schedule one_stage_per_rank(int32_t ranks, int32_t micro_batches) {
  Schedule schedule;
  schedule.micro_batches = micro_batches;
  schedule.rank_of.resize(static_cast<size_t>(ranks));
  std::iota(schedule.rank_of.begin(), schedule.rank_of.end(), 0);
  return schedule;
}

}  // namespace penstock::schedule
