// The search over all ranks at once: only what lies on the longest path of the step counts.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/plan/rank_slots.h"
#include "penstock/plan/step_clock.h"

namespace penstock::plan {

class SlotSearch {
 public:
  using Assignments = std::vector<RankSlots::Assignment>;  // by rank

  SlotSearch(const schedule::Schedule& schedule,
             const std::vector<RankSlots>& ranks,
             const std::vector<int64_t>& limit_bytes,
             const std::vector<StepClock::Transfer>& transfers);

  double seconds(const Assignments& assignments);

  // Never slower than `start`, which fits.
  Assignments fastest_uniform(Assignments start);
  Assignments fastest(Assignments start);

 private:
  // The step, then the sum over all turns: of two equal steps, the one with less work.
  struct Score {
    double step = 0;
    double work = 0;

    bool operator<(const Score& other) const;
  };
  struct Place {  // of a turn
    size_t rank = 0;
    size_t item = 0;
    schedule::Phase phase = schedule::Phase::Forward;
  };
  struct Chosen {
    size_t rank = 0, item = 0;

    auto operator<=>(const Chosen&) const = default;
  };

  Score score(const Assignments& assignments);
  bool is_shortest(const Score& score) const;
  std::vector<Chosen> critical_items(const Assignments& assignments);
  void solve_by_worth(Assignments& best);
  std::vector<int32_t> few_choices(const Chosen& which) const;
  bool fits(const Assignments& assignments, size_t rank);
  bool is_better(const Assignments& assignments, Score& best_score);
  bool improve_one(Assignments& best, Score& best_score, const Chosen& which);
  bool make_room(Assignments& best, Score& best_score, const Chosen& which);
  void improve(Assignments& best);

  const std::vector<RankSlots>& ranks_;
  std::vector<int64_t> limits_;
  StepClock clock_;
  std::vector<Place> places_;
  std::vector<StepClock::Seconds> turn_seconds_;
  double shortest_s_ = 0;
  int64_t work_left_ = 200'000'000;  // turns that may still be looked at: seconds at most
};

}  // namespace penstock::plan
