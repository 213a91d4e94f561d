// ZB-V (Qi et al., Zero Bubble Pipeline Parallelism, 2024): each rank has two stages, and the model
// goes down the ranks and back up, as a V: rank r of p has the stages r ("down") and 2p - 1 - r
// ("up"). The last stage is on rank 0, so its gradients are there early and leave early. With
// phases of equal length and 2p micro-batches or more, no rank waits once it has begun; and the 2p
// stage-activations in flight are what 1F1B has on its first rank.
#include <algorithm>

#include "penstock/schedule/kinds.h"
#include "penstock/schedule/rank_turns.h"

namespace penstock::schedule {

namespace {

std::vector<Turn> turns_of(int32_t rank, int32_t ranks, int32_t micro_batches) {
  using enum Phase;
  const int32_t down = rank;
  const int32_t up = 2 * ranks - 1 - rank;
  RankTurns turns(micro_batches);
  const auto add_whole_backward = [&](int32_t stage) {
    turns.add(BackwardInput, stage);
    turns.add(BackwardWeight, stage);
  };

  // 1. Forwards until the first micro-batch is back from the ranks below.
  turns.add(Forward, down, 2 * (ranks - rank) - 1);
  // 2. Both ways, until it has been up to rank 0 and its gradient has come down.
  for (int32_t i = 0; i < rank; ++i) {
    turns.add(Forward, up);
    turns.add(Forward, down);
  }
  // 3. No more forwards down: what is in flight has reached its most.
  for (int32_t i = 0; i < ranks - rank; ++i) {
    turns.add(Forward, up);
    add_whole_backward(up);
  }
  // 4. The steady state: one micro-batch in, one out.
  for (int32_t i = ranks; i < micro_batches; ++i) {
    turns.add(Forward, down);
    add_whole_backward(down);
    turns.add(Forward, up);
    add_whole_backward(up);
  }
  // 5. Input gradients only, since other ranks wait for them.
  for (int32_t i = 0; i < rank; ++i) {
    turns.add(BackwardInput, down);
    turns.add(BackwardInput, up);
  }
  // 6. The last gradients arrive one by one, and weight gradients fill the time between.
  for (int32_t i = 0; i < ranks - rank; ++i) {
    add_whole_backward(down);
  }
  turns.add_rest(BackwardWeight, up);
  turns.add_rest(BackwardWeight, down);
  return turns.take();
}

}  // namespace

Schedule make_zero_bubble_v(int32_t ranks, int32_t micro_batches) {
  Schedule schedule;
  schedule.micro_batches = micro_batches;
  for (int32_t stage = 0; stage < 2 * ranks; ++stage) {
    schedule.rank_of.push_back(std::min(stage, 2 * ranks - 1 - stage));
  }
  for (int32_t rank = 0; rank < ranks; ++rank) {
    schedule.turns.push_back(turns_of(rank, ranks, micro_batches));
  }
  return schedule;
}

}  // namespace penstock::schedule
