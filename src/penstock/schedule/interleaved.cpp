// 1F1B with v chunks on each rank: rank r of p has the stages r, r + p, r + 2p ... Micro-batches go
// in groups of p, a group through all chunks before the next. What is waited for at the start and
// the end is then a chunk, 1/v of a rank's share.
#include "penstock/schedule/kinds.h"
#include "penstock/schedule/rank_turns.h"

namespace penstock::schedule {

namespace {

std::vector<Turn> turns_of(int32_t rank, int32_t ranks, int32_t micro_batches, int32_t chunks) {
  // A short last group is a full one with turns left out, which takes waiting away and adds none.
  // To close up the turns instead makes ranks wait in a circle (p = 4, m = 5, v = 3).
  const int32_t groups = (micro_batches + ranks - 1) / ranks;
  const int32_t total = groups * ranks * chunks;
  const int32_t warm_up = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks;
  RankTurns turns(micro_batches);
  const auto chunk_at = [&](int32_t i) { return i / ranks % chunks; };
  const auto add = [&](Phase phase, int32_t chunk) { turns.add(phase, chunk * ranks + rank); };

  for (int32_t i = 0; i < warm_up; ++i) {
    add(Phase::Forward, chunk_at(i));
  }
  for (int32_t i = 0; i < total; ++i) {
    add(Phase::Forward, chunk_at(warm_up + i));
    add(Phase::Backward, chunks - 1 - chunk_at(i));
  }
  return turns.take();
}

}  // namespace

Schedule make_interleaved(int32_t ranks, int32_t micro_batches, int32_t chunks) {
  if (chunks == 1) {
    return make_one_f_one_b(ranks, micro_batches);  // as fast, with less in flight
  }
  Schedule schedule;
  schedule.micro_batches = micro_batches;
  for (int32_t stage = 0; stage < ranks * chunks; ++stage) {
    schedule.rank_of.push_back(stage % ranks);
  }
  for (int32_t rank = 0; rank < ranks; ++rank) {
    schedule.turns.push_back(turns_of(rank, ranks, micro_batches, chunks));
  }
  return schedule;
}

}  // namespace penstock::schedule
