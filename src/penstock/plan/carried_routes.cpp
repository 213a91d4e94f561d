#include "penstock/plan/carried_routes.h"

#include <algorithm>

#include "penstock/base/error.h"

namespace penstock::plan {

namespace {

using schedule::Phase;
using schedule::Turn;

bool is_backward(Phase phase) {
  return phase == Phase::Backward || phase == Phase::BackwardInput;
}

// The stage whose message a turn begins with; -1: none.
int32_t waits_for(const Turn& turn, int32_t stages) {
  return turn.phase == Phase::Forward ? turn.stage - 1
         : !is_backward(turn.phase)   ? -1
         : turn.stage + 1 < stages    ? turn.stage + 1
                                      : -1;
}

}  // namespace

CarriedRoutes::CarriedRoutes(const CostTable& table,
                             const schedule::Schedule& schedule,
                             const std::vector<int32_t>& cuts)
    : schedule_(schedule) {
  if (table.carried.empty()) {
    return;
  }
  known_.resize(schedule.turns.size());
  find_places();
  const auto stage_of = [&](int32_t layer) {
    const int32_t within = std::min(layer, cuts.back() - 1);  // the loss is at the last stage
    const auto next = std::upper_bound(cuts.begin(), cuts.end(), within);
    return static_cast<int32_t>(next - cuts.begin()) - 1;
  };
  for (size_t i = 0; i < table.carried.size(); ++i) {
    const program::Carried& element = table.carried[i].element;
    const auto number = static_cast<int32_t>(i);
    std::vector<int32_t>& stages = stages_of_.emplace_back();
    if (element.born >= 0) {
      stages.push_back(stage_of(element.born));
    }
    for (const int32_t reader : element.readers) {
      stages.push_back(stage_of(reader));
    }
    stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
    for (size_t k = 0; element.born >= 0 && k + 1 < stages.size(); ++k) {
      const int32_t to = rank_of(stages[k + 1]);
      const bool has_it = std::any_of(stages.begin(),
                                      stages.begin() + static_cast<int64_t>(k) + 1,
                                      [&](int32_t stage) { return rank_of(stage) == to; });
      ahead_.push_back({number, stages[k], stages[k + 1], !has_it});
    }
    for (size_t k = stages.size() - 1; element.has_gradient && k > 0; --k) {
      back_.push_back(
          {number, stages[k], stages[k - 1], rank_of(stages[k]) != rank_of(stages[k - 1])});
    }
  }
  for (const auto* hops : {&ahead_, &back_}) {
    for (const CarriedHop& hop : *hops) {
      const int32_t peer = rank_of(hop.to);
      if (hop.is_message && hop.is_far() && known_[static_cast<size_t>(peer)].empty()) {
        known_[static_cast<size_t>(peer)] = known_turns(peer);
      }
    }
  }
}

void CarriedRoutes::find_places() {
  places_.resize(2 * static_cast<size_t>(schedule_.stages()) *
                 static_cast<size_t>(schedule_.micro_batches));
  for (const std::vector<Turn>& turns : schedule_.turns) {
    for (size_t at = 0; at < turns.size(); ++at) {
      if (turns[at].phase == Phase::Forward || is_backward(turns[at].phase)) {
        places_[place_index(is_backward(turns[at].phase), turns[at].stage, turns[at].micro_batch)] =
            at;
      }
    }
  }
}

size_t CarriedRoutes::place_index(bool is_back, int32_t stage, int32_t micro_batch) const {
  return (static_cast<size_t>(stage) * static_cast<size_t>(schedule_.micro_batches) +
          static_cast<size_t>(micro_batch)) *
             2 +
         (is_back ? 1 : 0);
}

bool CarriedRoutes::touches(int32_t element, int32_t stage) const {
  const std::vector<int32_t>& stages = stages_of(element);
  return std::binary_search(stages.begin(), stages.end(), stage);
}

// Turns are taken as soon as those that they wait for have been: each knows what those knew.
std::vector<std::vector<int32_t>> CarriedRoutes::known_turns(int32_t peer) const {
  const size_t ranks = schedule_.turns.size();
  std::vector<std::vector<int32_t>> known(ranks);
  const auto known_after = [&](size_t rank, size_t turn) {
    return static_cast<int32_t>(rank) == peer ? static_cast<int32_t>(turn) + 1 : known[rank][turn];
  };
  bool moves = true;
  while (moves) {
    moves = false;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const std::vector<Turn>& turns = schedule_.turns[rank];
      while (known[rank].size() < turns.size()) {
        const size_t at = known[rank].size();
        int32_t knows = at == 0 ? 0 : known_after(rank, at - 1);
        if (const int32_t stage = waits_for(turns[at], schedule_.stages());
            stage >= 0 && rank_of(stage) != static_cast<int32_t>(rank)) {
          const auto other = static_cast<size_t>(rank_of(stage));
          const size_t turn =
              places_[place_index(is_backward(turns[at].phase), stage, turns[at].micro_batch)];
          if (turn >= known[other].size()) {
            break;
          }
          knows = std::max(knows, known_after(other, turn));
        }
        known[rank].push_back(knows);
        moves = true;
      }
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    PENSTOCK_CHECK(known[rank].size() == schedule_.turns[rank].size(),
                   "a schedule whose ranks wait in a circle");
  }
  return known;
}

std::optional<size_t> CarriedRoutes::let_go(const CarriedHop& hop, int32_t micro_batch) const {
  const bool is_back = hop.to < hop.from;
  const auto from = static_cast<size_t>(rank_of(hop.from));
  const auto to = static_cast<size_t>(rank_of(hop.to));
  const size_t received = places_[place_index(is_back, hop.to, micro_batch)];
  const std::vector<Turn>& turns = schedule_.turns[from];
  const std::vector<int32_t>& known = known_[to][from];
  const size_t sent = places_[place_index(is_back, hop.from, micro_batch)];
  for (size_t at = sent + 1; at < turns.size(); ++at) {
    const bool is_work = turns[at].phase == Phase::Forward || is_backward(turns[at].phase);
    if (is_work && static_cast<size_t>(known[at]) > received) {
      return at;
    }
  }
  return std::nullopt;
}

}  // namespace penstock::plan
