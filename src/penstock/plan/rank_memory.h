// What a rank of a pipeline holds at each of its turns, for any choice of operations.
//
// Beside what the micro-batches hold of their own (StageUse) there are: inputs and targets that
// wait for their first turn; what was sent last over each boundary, which may still be on its way;
// and what waits for the next stage where that is on the same rank. An element that several stages of
// a rank read counts for each of them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "penstock/plan/stage_use.h"

namespace penstock::plan {

class RankMemory {
 public:
  RankMemory(const CostTable& table,
             const schedule::Schedule& schedule,
             const std::vector<int32_t>& cuts,
             int32_t rank);

  // An item is a micro-batch at one of the rank's stages.
  struct Item {
    int32_t stage = 0;
    int32_t micro_batch = 0;
  };
  const std::vector<Item>& items() const { return items_; }
  const std::vector<int32_t>& stages() const { return stages_; }
  // Micro-batches of a stage that are between forward and the end of backward, at most.
  int32_t most_in_flight(int32_t stage) const;
  // The same over all stages of the rank: not all are at their most at the same time.
  int32_t most_in_flight() const;
  // Bytes that no choice changes, at most.
  int64_t most_beside() const;

  struct Peak {
    int64_t bytes = 0;
    int32_t turn = -1;
  };
  // use_of(item) is a StageUse. The first of the highest turns; or, with a limit, the first beyond
  // it.
  template <typename UseOf>
  Peak peak(const UseOf& use_of, int64_t limit_bytes = std::numeric_limits<int64_t>::max()) const;
  // Items that hold bytes at a turn, the running one included.
  std::vector<size_t> items_at(int32_t turn) const;

 private:
  struct Moment {
    schedule::Phase phase = schedule::Phase::Forward;
    size_t item = 0;
    int64_t beside = 0;  // bytes that no choice changes
  };

  template <typename Counts>
  int32_t most_of(const Counts& counts) const;

  std::vector<int32_t> stages_;
  std::vector<Item> items_;
  std::vector<Moment> moments_;
};

template <typename UseOf>
RankMemory::Peak RankMemory::peak(const UseOf& use_of, int64_t limit_bytes) const {
  Peak most;
  int64_t held = 0;
  for (size_t turn = 0; turn < moments_.size() && most.bytes <= limit_bytes; ++turn) {
    const Moment& moment = moments_[turn];
    const StageUse& use = use_of(moment.item);
    int64_t own = 0;
    int64_t left = 0;
    switch (moment.phase) {
      case schedule::Phase::Forward:
        own = use.forward_peak;
        left = use.held;
        break;
      case schedule::Phase::Backward:
        held -= use.held;
        own = use.backward_peak;
        break;
      case schedule::Phase::BackwardInput:
        held -= use.held;
        own = use.backward_peak;
        left = use.weight_held;
        break;
      case schedule::Phase::BackwardWeight:
        held -= use.weight_held;
        own = use.weight_peak;
        break;
      case schedule::Phase::Update:
        break;
    }
    if (const int64_t bytes = moment.beside + held + own; bytes > most.bytes) {
      most = {bytes, static_cast<int32_t>(turn)};
    }
    held += left;
  }
  return most;
}

}  // namespace penstock::plan
