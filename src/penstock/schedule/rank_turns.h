// Inside of the folder: what the schedules are written with.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

// The turns of one rank, written down by phase and stage. The micro-batch is the next one of the
// two, so those of a stage come in order. A pattern may ask for more micro-batches than there are:
// it needs no special case for few.
class RankTurns {
 public:
  explicit RankTurns(int32_t micro_batches) : micro_batches_(micro_batches) {}

  // The next `count` micro-batches, or those that are left.
  void add(Phase phase, int32_t stage, int32_t count = 1);
  void add_rest(Phase phase, int32_t stage) { add(phase, stage, micro_batches_); }

  std::vector<Turn> take() { return std::move(turns_); }

 private:
  int32_t micro_batches_;
  std::map<std::pair<Phase, int32_t>, int32_t> next_;
  std::vector<Turn> turns_;
};

// Stage r on rank r, and no turns yet.
Schedule one_stage_per_rank(int32_t ranks, int32_t micro_batches);

}  // namespace penstock::schedule
