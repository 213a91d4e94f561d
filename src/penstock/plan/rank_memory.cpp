#include "penstock/plan/rank_memory.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "penstock/plan/carried_routes.h"

namespace penstock::plan {

namespace {

using schedule::Phase;

// The bytes beside what the items hold of their own, turn after turn.
class Beside {
 public:
  Beside(const CostTable& table,
         const schedule::Schedule& schedule,
         const std::vector<int32_t>& cuts,
         int32_t rank)
      : table_(table),
        schedule_(schedule),
        cuts_(cuts),
        routes_(table, schedule, cuts),
        rank_(rank),
        let_go_(schedule.turns[static_cast<size_t>(rank)].size(), 0) {
    const size_t stages = static_cast<size_t>(schedule.stages());
    has_sent_.assign(stages, 0);
    has_sent_back_.assign(stages, 0);
    if (is_here(0)) {
      bytes_ += schedule.micro_batches * table.input_bytes();
    }
    if (is_here(schedule.stages() - 1)) {
      bytes_ += schedule.micro_batches * table.target_bytes;
    }
    for (size_t i = 0; i < table.carried.size(); ++i) {
      if (first_reader_here(static_cast<int32_t>(i)) >= 0) {
        bytes_ += schedule.micro_batches * table.carried[i].bytes;
      }
    }
  }

  // What there is while the turn runs, without what has become its own.
  int64_t begin(const schedule::Turn& turn) {
    if (turn.phase == Phase::Forward) {
      if (turn.stage == 0 || is_here(turn.stage - 1)) {
        bytes_ -= first_of(turn.stage).input_bytes;
      }
      if (turn.stage + 1 == schedule_.stages()) {
        bytes_ -= table_.target_bytes;
      }
      for (size_t i = 0; i < table_.carried.size(); ++i) {
        if (first_reader_here(static_cast<int32_t>(i)) == turn.stage) {
          bytes_ -= table_.carried[i].bytes;
        }
      }
    } else if (turn.phase != Phase::BackwardWeight && is_here(turn.stage + 1)) {
      bytes_ -= first_of(turn.stage + 1).input_gradient();
    }
    if (is_backward(turn)) {
      for (const CarriedHop& hop : routes_.back()) {
        if (hop.to == turn.stage && !hop.is_message) {
          bytes_ -= cost_of(hop).gradient_bytes;
        }
      }
    }
    return bytes_;
  }

  // What it leaves for others: to the next stage here it waits, to one elsewhere it is on its way
  // until the next message.
  void end(const schedule::Turn& turn) {
    const size_t at = static_cast<size_t>(turn.stage);
    bytes_ -= let_go_[turn_++];
    leave_carried(turn);
    if (turn.phase == Phase::Forward && turn.stage + 1 < schedule_.stages()) {
      if (is_here(turn.stage + 1) || has_sent_[at] == 0) {
        bytes_ += first_of(turn.stage + 1).input_bytes;
      }
      has_sent_[at] = 1;
    }
    if (is_backward(turn) && turn.stage > 0) {
      if (is_here(turn.stage - 1) || has_sent_back_[at] == 0) {
        bytes_ += first_of(turn.stage).input_gradient();
      }
      has_sent_back_[at] = 1;
    }
  }

 private:
  static bool is_backward(const schedule::Turn& turn) {
    return turn.phase == Phase::Backward || turn.phase == Phase::BackwardInput;
  }
  const CarriedCost& cost_of(const CarriedHop& hop) const {
    return table_.carried[static_cast<size_t>(hop.element)];
  }
  // Of what the batch brings: the first stage here that reads it. It waits for that one's turn.
  int32_t first_reader_here(int32_t element) const {
    if (table_.carried[static_cast<size_t>(element)].element.born >= 0) {
      return -1;
    }
    for (const int32_t stage : routes_.stages_of(element)) {
      if (is_here(stage)) {
        return stage;
      }
    }
    return -1;
  }
  // An element that was sent is the micro-batch's own until its backward; to a neighbour it may be on
  // its way a little longer. A gradient is on its way until the next one of the same way, or (a far
  // one) until it is let go.
  void leave_carried(const schedule::Turn& turn) {
    const bool is_back = is_backward(turn);
    if (!is_back && turn.phase != Phase::Forward) {
      return;
    }
    for (const CarriedHop& hop : is_back ? routes_.back() : routes_.ahead()) {
      if (hop.from != turn.stage) {
        continue;
      }
      const int64_t bytes = is_back ? cost_of(hop).gradient_bytes : cost_of(hop).bytes;
      if (hop.is_message && !hop.is_far()) {
        bytes_ += has_left_.insert({is_back, hop.element, hop.from}).second ? bytes : 0;
      } else if (is_back) {
        bytes_ += bytes;
        if (const auto later =
                hop.is_message ? routes_.let_go(hop, turn.micro_batch) : std::nullopt) {
          let_go_[*later] += bytes;
        }
      }
    }
  }

  bool is_here(int32_t stage) const {
    return stage < schedule_.stages() && schedule_.rank_of[static_cast<size_t>(stage)] == rank_;
  }
  const LayerCost& first_of(int32_t stage) const {
    return table_.layers[static_cast<size_t>(cuts_[static_cast<size_t>(stage)])];
  }

  const CostTable& table_;
  const schedule::Schedule& schedule_;
  const std::vector<int32_t>& cuts_;
  const CarriedRoutes routes_;
  const int32_t rank_;
  int64_t bytes_ = 0;
  size_t turn_ = 0;                                        // of the rank
  std::vector<int64_t> let_go_;                            // by turn
  std::set<std::tuple<bool, int32_t, int32_t>> has_left_;  // direction, element and stage
  std::vector<char> has_sent_, has_sent_back_;             // by stage
};

}  // namespace

RankMemory::RankMemory(const CostTable& table,
                       const schedule::Schedule& schedule,
                       const std::vector<int32_t>& cuts,
                       int32_t rank) {
  std::vector<size_t> first_item(static_cast<size_t>(schedule.stages()), 0);
  for (int32_t stage = 0; stage < schedule.stages(); ++stage) {
    if (schedule.rank_of[static_cast<size_t>(stage)] == rank) {
      first_item[static_cast<size_t>(stage)] = items_.size();
      stages_.push_back(stage);
      for (int32_t micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch) {
        items_.push_back({stage, micro_batch});
      }
    }
  }
  Beside beside(table, schedule, cuts, rank);
  for (const schedule::Turn& turn : schedule.turns[static_cast<size_t>(rank)]) {
    moments_.push_back(
        {turn.phase,
         first_item[static_cast<size_t>(turn.stage)] + static_cast<size_t>(turn.micro_batch),
         beside.begin(turn)});
    beside.end(turn);
  }
}

template <typename Counts>
int32_t RankMemory::most_of(const Counts& counts) const {
  int32_t now = 0, most = 0;
  for (const Moment& moment : moments_) {
    if (moment.phase != Phase::BackwardWeight && counts(items_[moment.item].stage)) {
      now += moment.phase == Phase::Forward ? 1 : -1;
      most = std::max(most, now);
    }
  }
  return most;
}

int32_t RankMemory::most_in_flight(int32_t stage) const {
  return most_of([&](int32_t other) { return other == stage; });
}

int32_t RankMemory::most_in_flight() const {
  return most_of([](int32_t) { return true; });
}

int64_t RankMemory::most_beside() const {
  int64_t most = 0;
  for (const Moment& moment : moments_) {
    most = std::max(most, moment.beside);
  }
  return most;
}

std::vector<size_t> RankMemory::items_at(int32_t turn) const {
  std::vector<char> is_held(items_.size(), 0);
  for (int32_t i = 0; i <= turn; ++i) {
    const Moment& moment = moments_[static_cast<size_t>(i)];
    is_held[moment.item] = i == turn || moment.phase == Phase::Forward ? 1 : 0;
  }
  std::vector<size_t> items;
  for (size_t item = 0; item < items_.size(); ++item) {
    if (is_held[item] != 0) {
      items.push_back(item);
    }
  }
  return items;
}

}  // namespace penstock::plan
