// All forwards, then all backwards. The backwards go from the first micro-batch to the last, not
// the other way round: gradients are then added in the order of a single device.
#include "penstock/schedule/kinds.h"
#include "penstock/schedule/rank_turns.h"

namespace penstock::schedule {

Schedule make_gpipe(int32_t ranks, int32_t micro_batches) {
  Schedule schedule = one_stage_per_rank(ranks, micro_batches);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    RankTurns turns(micro_batches);
    turns.add_rest(Phase::Forward, rank);
    turns.add_rest(Phase::Backward, rank);
    schedule.turns.push_back(turns.take());
  }
  return schedule;
}

}  // namespace penstock::schedule
