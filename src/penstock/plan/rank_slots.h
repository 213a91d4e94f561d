// Which operations each micro-batch of one rank takes, within the rank's bytes. Ranks share no
// memory, so each is solved alone; what its micro-batches' seconds are worth to the step comes from
// outside.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "penstock/plan/rank_memory.h"
#include "penstock/plan/stage_rotor.h"

namespace penstock::plan {

class RankSlots {
 public:
  // An index into the choices of the item's stage, for each item.
  using Assignment = std::vector<int32_t>;
  using Choices = std::vector<StageChoice>;

  // `choices` by stage of the pipeline.
  RankSlots(const RankMemory& memory, const std::vector<Choices>& choices);

  struct Least {
    Assignment assignment;
    RankMemory::Peak peak;
  };
  // The least bytes that were found to do.
  Least least() const;
  // The same, with one choice for all micro-batches of a stage.
  Least least_uniform() const;

  // What a second of an item is worth to the step, before the gradient's arrival and otherwise.
  struct Worth {
    double lead = 1;
    double rest = 1;

    double of(const StageUse& use) const {
      return rest * (use.seconds() - use.lead_s) + lead * use.lead_s;
    }
  };
  // Bytes that may be left free for the phase that runs: the less, the more can be held.
  std::vector<int64_t> levels(size_t most = std::numeric_limits<size_t>::max()) const;

  struct Found {
    Assignment assignment;
    int64_t level = 0;
    double worth = 0;
  };
  // The least worth that was found with any of the levels. Nothing where none fits.
  std::optional<Found> fastest(int64_t limit_bytes,
                               const std::vector<Worth>& worth,
                               const std::vector<int64_t>& levels) const;
  std::optional<Assignment> fastest_uniform(int64_t limit_bytes) const;

  RankMemory::Peak peak(const Assignment& assignment) const;
  bool fits(const Assignment& assignment, int64_t limit_bytes) const;
  const RankMemory& memory() const { return memory_; }
  const Choices& choices_of(size_t item) const;
  const StageUse& use(const Assignment& assignment, size_t item) const;

 private:
  struct Slot {  // micro-batches that use the same room, one after the other
    int32_t stage = 0;
    std::vector<size_t> items;
    Worth worth{0, 0};
  };

  std::vector<Slot> slots_with(const std::vector<Worth>& worth) const;
  std::vector<int32_t> choices_within(int32_t stage, int64_t level, const Worth& worth) const;
  std::optional<Assignment> fill_slots(int64_t limit_bytes,
                                       int64_t level,
                                       const std::vector<Slot>& slots) const;
  std::optional<Assignment> fill_from_the_end(int64_t limit_bytes,
                                              int64_t forward_level,
                                              const std::vector<Worth>& worth) const;
  void speed_up(Assignment& assignment, int64_t limit_bytes, const std::vector<Worth>& worth) const;
  Assignment uniform(const std::vector<int32_t>& by_stage) const;
  template <typename Visit>
  void walk_down(const std::vector<std::vector<int32_t>>& lists, const Visit& visit) const;
  template <typename Visit>
  void for_all_uniform(const Visit& visit) const;
  double cost(const Assignment& assignment, const std::vector<Worth>& worth) const;

  const RankMemory& memory_;
  const std::vector<Choices>& choices_;
};

}  // namespace penstock::plan
