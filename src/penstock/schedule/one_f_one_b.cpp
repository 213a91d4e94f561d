// A rank runs ahead by the forwards that the ranks after it need before the first gradient returns;
// from then on each forward is followed by a backward, so that no more than p - r micro-batches are
// in flight on rank r of p.
#include "penstock/schedule/kinds.h"
#include "penstock/schedule/rank_turns.h"

namespace penstock::schedule {

Schedule make_one_f_one_b(int32_t ranks, int32_t micro_batches) {
  Schedule schedule = one_stage_per_rank(ranks, micro_batches);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    RankTurns turns(micro_batches);
    turns.add(Phase::Forward, rank, ranks - 1 - rank);
    for (int32_t i = 0; i < micro_batches; ++i) {
      turns.add(Phase::Forward, rank);
      turns.add(Phase::Backward, rank);
    }
    schedule.turns.push_back(turns.take());
  }
  return schedule;
}

}  // namespace penstock::schedule
