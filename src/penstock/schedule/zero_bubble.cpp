// 1F1B with the backward split into input gradient and weight gradient (Qi et al., Zero Bubble
// Pipeline Parallelism, 2023). The rank before waits for the input gradient alone, so it starts
// sooner. Nobody waits for the weight gradients: they are put off, and fill the time in which a
// rank would wait at the end. With seconds F, B and W of the phases, on rank r of p:
//   H1  p - 1 - r forwards ahead, W put off by r micro-batches: p in flight,
//       (p - 1)(F + B - W) of waiting;
//   H2  twice as far ahead and put off by twice as much: 2p - 1 in flight,
//       (p - 1)(F + B - 2W) of waiting, where W is no longer than F or B.
#include "penstock/schedule/kinds.h"
#include "penstock/schedule/rank_turns.h"

namespace penstock::schedule {

namespace {

// `reach`: 1 for H1, 2 for H2.
Schedule make_zero_bubble(int32_t ranks, int32_t micro_batches, int32_t reach) {
  Schedule schedule = one_stage_per_rank(ranks, micro_batches);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    RankTurns turns(micro_batches);
    turns.add(Phase::Forward, rank, reach * (ranks - 1 - rank));
    for (int32_t i = 0; i < micro_batches; ++i) {
      turns.add(Phase::Forward, rank);
      turns.add(Phase::BackwardInput, rank);
      if (i >= reach * rank) {
        turns.add(Phase::BackwardWeight, rank);
      }
    }
    turns.add_rest(Phase::BackwardWeight, rank);
    schedule.turns.push_back(turns.take());
  }
  return schedule;
}

}  // namespace

Schedule make_zero_bubble_h1(int32_t ranks, int32_t micro_batches) {
  return make_zero_bubble(ranks, micro_batches, 1);
}

Schedule make_zero_bubble_h2(int32_t ranks, int32_t micro_batches) {
  return make_zero_bubble(ranks, micro_batches, 2);
}

}  // namespace penstock::schedule
