// Every choice of operations for every micro-batch of a small pipeline, tried.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "penstock/plan/rank_memory.h"
#include "penstock/plan/slots.h"
#include "penstock/plan/step_clock.h"

#include "plan/all_stage_operations.h"

namespace penstock::test {

class AllSlots {
 public:
  AllSlots(const plan::CostTable& table,
           const schedule::Schedule& schedule,
           const std::vector<int32_t>& cuts)
      : schedule_(schedule) {
    for (int32_t stage = 0; stage < schedule.stages(); ++stage) {
      choices_.push_back(best_stage_choices(table, cuts, stage, /*splits=*/false));
    }
    for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
      memories_.emplace_back(table, schedule, cuts, rank);
    }
  }

  bool is_small() const {
    return std::all_of(memories_.begin(), memories_.end(), [&](const auto& memory) {
      double count = 1;
      for (const auto& item : memory.items()) {
        count *= static_cast<double>(choices_[static_cast<size_t>(item.stage)].size());
      }
      return count <= 3e5;
    });
  }

  int64_t least_bytes(int32_t rank) const {
    int64_t least = INT64_MAX;
    for_all(rank, [&](const Uses& uses) { least = std::min(least, peak(rank, uses)); });
    return least;
  }

  // The least seconds of a step, or nothing where there are too many combinations to try.
  std::optional<double> fastest(const std::vector<int64_t>& limits, double transfer_s) {
    std::vector<std::vector<Uses>> best;
    double count = 1;
    for (int32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      best.push_back(best_uses(rank, limits[static_cast<size_t>(rank)]));
      count *= static_cast<double>(best.back().size());
    }
    if (count > 2e5) {
      return std::nullopt;
    }
    plan::StepClock clock(schedule_,
                          std::vector<plan::StepClock::Transfer>(
                              static_cast<size_t>(schedule_.stages()), {transfer_s, transfer_s}));
    std::vector<plan::StepClock::Seconds> seconds(clock.turns());
    double least = 1e300;
    combine(best, 0, 0, seconds, [&] { least = std::min(least, clock.run(seconds)); });
    return least;
  }

 private:
  using Uses = std::vector<const plan::StageUse*>;

  const plan::RankMemory& memory(int32_t rank) const {
    return memories_[static_cast<size_t>(rank)];
  }

  int64_t peak(int32_t rank, const Uses& uses) const {
    const auto use_of = [&](size_t item) -> const plan::StageUse& { return *uses[item]; };
    return memory(rank).peak(use_of).bytes;
  }

  template <typename Visit>
  void for_all(int32_t rank, const Visit& visit) const {
    Uses uses(memory(rank).items().size());
    const std::function<void(size_t)> choose = [&](size_t item) {
      if (item == uses.size()) {
        return visit(uses);
      }
      const int32_t stage = memory(rank).items()[item].stage;
      for (const plan::StageChoice& choice : choices_[static_cast<size_t>(stage)]) {
        uses[item] = &choice.use;
        choose(item + 1);
      }
    };
    choose(0);
  }

  // Those within the limit of which no other is at least as fast in every turn.
  std::vector<Uses> best_uses(int32_t rank, int64_t limit) const {
    const auto is_beaten = [](const Uses& one, const Uses& by) {
      for (size_t i = 0; i < one.size(); ++i) {
        const double by_rest = by[i]->backward_s - by[i]->lead_s;
        if (by[i]->forward_s > one[i]->forward_s || by[i]->backward_s > one[i]->backward_s ||
            by_rest > one[i]->backward_s - one[i]->lead_s) {
          return false;
        }
      }
      return true;
    };
    std::vector<Uses> best;
    for_all(rank, [&](const Uses& uses) {
      if (peak(rank, uses) > limit || std::any_of(best.begin(), best.end(), [&](const Uses& other) {
            return is_beaten(uses, other);
          })) {
        return;
      }
      std::erase_if(best, [&](const Uses& other) { return is_beaten(other, uses); });
      best.push_back(uses);
    });
    return best;
  }

  template <typename Visit>
  void combine(const std::vector<std::vector<Uses>>& best,
               size_t rank,
               size_t first_turn,
               std::vector<plan::StepClock::Seconds>& seconds,
               const Visit& visit) const {
    if (rank == best.size()) {
      return visit();
    }
    const auto& turns = schedule_.turns[rank];
    const auto& items = memories_[rank].items();
    for (const Uses& uses : best[rank]) {
      for (size_t turn = 0; turn < turns.size(); ++turn) {
        for (size_t item = 0; item < items.size(); ++item) {
          if (items[item].stage == turns[turn].stage &&
              items[item].micro_batch == turns[turn].micro_batch) {
            const plan::StageUse& use = *uses[item];
            seconds[first_turn + turn] =
                turns[turn].phase == schedule::Phase::Forward
                    ? plan::StepClock::Seconds{0, use.forward_s}
                    : plan::StepClock::Seconds{use.lead_s, use.backward_s - use.lead_s};
          }
        }
      }
      combine(best, rank + 1, first_turn + turns.size(), seconds, visit);
    }
  }

  const schedule::Schedule& schedule_;
  std::vector<std::vector<plan::StageChoice>> choices_;  // by stage
  std::vector<plan::RankMemory> memories_;               // by rank
};

}  // namespace penstock::test
