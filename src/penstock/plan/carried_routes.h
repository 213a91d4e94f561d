// Where the elements that are carried along the chain go between the stages of a pipeline.
//
// An element's stages are that of the layer that makes it and those that read it, in order. It goes
// from each to the next, by a message where that one's rank does not have it yet; its gradient comes
// back the same way. What the batch brings is with every rank that reads it, and goes nowhere.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/plan/cost_table.h"
#include "penstock/schedule/schedule.h"

namespace penstock::plan {

// A way between two stages of an element that follow one another.
struct CarriedHop {
  int32_t element = 0;
  int32_t from = 0, to = 0;  // stages
  bool is_message = false;   // not where the other stage's rank has it already

  // A message to a neighbour goes with the neighbour's activation, or its gradient.
  bool is_far() const { return from - to > 1 || to - from > 1; }
};

class CarriedRoutes {
 public:
  CarriedRoutes(const CostTable& table,
                const schedule::Schedule& schedule,
                const std::vector<int32_t>& cuts);

  bool is_empty() const { return stages_of_.empty(); }
  // Ascending. What the batch brings: those that read it.
  const std::vector<int32_t>& stages_of(int32_t element) const {
    return stages_of_[static_cast<size_t>(element)];
  }
  bool touches(int32_t element, int32_t stage) const;
  // Whether a later stage has to do with it.
  bool goes_on(int32_t element, int32_t stage) const { return stages_of(element).back() > stage; }

  // Of elements, and of their gradients. By element.
  const std::vector<CarriedHop>& ahead() const { return ahead_; }
  const std::vector<CarriedHop>& back() const { return back_; }

  // A far message may be long on its way, and whoever frees it waits for its peer: two ranks could
  // wait for each other. So it is freed by the first turn that cannot begin before the peer has it.
  // The place of that turn in the sender's list; nothing where there is none.
  std::optional<size_t> let_go(const CarriedHop& hop, int32_t micro_batch) const;

 private:
  int32_t rank_of(int32_t stage) const { return schedule_.rank_of[static_cast<size_t>(stage)]; }
  std::vector<std::vector<int32_t>> known_turns(int32_t peer) const;
  void find_places();
  size_t place_index(bool is_back, int32_t stage, int32_t micro_batch) const;

  const schedule::Schedule& schedule_;
  std::vector<std::vector<int32_t>> stages_of_;  // by element
  std::vector<CarriedHop> ahead_, back_;
  std::vector<size_t> places_;  // of turns in their ranks' lists, by place_index
  // Of a rank that far messages go to; then by rank and turn: how many of its turns have ended when
  // that turn's work begins.
  std::vector<std::vector<std::vector<int32_t>>> known_;
};

}  // namespace penstock::plan
