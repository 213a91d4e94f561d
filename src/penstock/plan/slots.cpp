#include "penstock/plan/slots.h"

#include <algorithm>
#include <limits>

#include "penstock/base/error.h"
#include "penstock/plan/carried_routes.h"
#include "penstock/plan/slot_search.h"

namespace penstock::plan {

namespace {

bool splits_backward(const schedule::Schedule& schedule) {
  for (const std::vector<schedule::Turn>& turns : schedule.turns) {
    for (const schedule::Turn& turn : turns) {
      if (turn.phase == schedule::Phase::BackwardInput) {
        return true;
      }
    }
  }
  return false;
}

// What the stages' micro-batches may do.
class StageMenus {
 public:
  explicit StageMenus(const SlotsRequest& request) {
    const bool splits = splits_backward(request.schedule);
    const auto kept = keep_everything(request.table, request.cuts, 1);
    for (int32_t stage = 0; stage < request.schedule.stages(); ++stage) {
      if (request.mode == SlotMode::KeepAll) {
        const StageOperations& operations = kept[static_cast<size_t>(stage)][0];
        choices_.push_back(
            {{operations, use_of(request.table, request.cuts, stage, operations, splits)}});
      } else {
        rotors_.emplace_back(request.table, request.cuts, stage, splits);
        choices_.push_back(rotors_.back().choices());
      }
    }
  }

  // Choices cannot be there for every limit: these are made to measure for one.
  void add_for(const RankMemory& memory, int64_t limit_bytes) {
    const int64_t bytes = limit_bytes - memory.most_beside();
    const int64_t slots = memory.most_in_flight();
    for (const int32_t stage : memory.stages()) {
      RankSlots::Choices& choices = choices_[static_cast<size_t>(stage)];
      for (int64_t part = 1; part <= kParts && bytes > 0; ++part) {
        const int64_t held = bytes / (kParts * slots) * part;
        const int64_t running = bytes - (slots - 1) * held;
        auto found = rotors_[static_cast<size_t>(stage)].fastest({running, held, running});
        if (found.has_value() && is_new(choices, found->operations)) {
          choices.push_back(std::move(*found));
        }
      }
    }
  }

  const std::vector<RankSlots::Choices>& choices() const { return choices_; }

 private:
  static constexpr int64_t kParts = 16;

  static bool is_new(const RankSlots::Choices& choices, const StageOperations& operations) {
    return std::none_of(choices.begin(), choices.end(), [&](const StageChoice& choice) {
      return choice.operations == operations;
    });
  }

  std::vector<StageRotor> rotors_;
  std::vector<RankSlots::Choices> choices_;  // by stage
};

std::vector<StepClock::Transfer> transfer_seconds(const SlotsRequest& request) {
  std::vector<StepClock::Transfer> seconds;
  for (size_t stage = 0; stage + 2 < request.cuts.size(); ++stage) {
    const LayerCost& next = request.table.layers[static_cast<size_t>(request.cuts[stage + 1])];
    seconds.push_back({.activation_s = request.link.seconds(next.input_bytes),
                       .gradient_s = request.link.seconds(next.input_gradient())});
  }
  // What is carried to a neighbour, or back from one, goes beside; far messages are not awaited here.
  const CarriedRoutes routes(request.table, request.schedule, request.cuts);
  for (const auto* hops : {&routes.ahead(), &routes.back()}) {
    for (const CarriedHop& hop : *hops) {
      if (hop.is_message && !hop.is_far()) {
        const CarriedCost& cost = request.table.carried[static_cast<size_t>(hop.element)];
        StepClock::Transfer& transfer = seconds[static_cast<size_t>(std::min(hop.from, hop.to))];
        (hop.from < hop.to ? transfer.activation_s : transfer.gradient_s) +=
            request.link.seconds(hop.from < hop.to ? cost.bytes : cost.gradient_bytes);
      }
    }
  }
  return seconds;
}

void fill_in(const SlotsRequest& request,
             const std::vector<RankSlots>& ranks,
             const SlotSearch::Assignments& assignments,
             SlotsAnswer& answer) {
  answer.operations.assign(
      request.schedule.rank_of.size(),
      std::vector<StageOperations>(static_cast<size_t>(request.schedule.micro_batches)));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    answer.peak_bytes.push_back(ranks[rank].peak(assignments[rank]).bytes);
    for (size_t item = 0; item < assignments[rank].size(); ++item) {
      const auto [stage, micro_batch] = ranks[rank].memory().items()[item];
      const StageOperations& operations =
          ranks[rank].choices_of(item)[static_cast<size_t>(assignments[rank][item])].operations;
      answer.recomputed_forwards += recomputed_forwards(request.cuts, stage, operations);
      answer.operations[static_cast<size_t>(stage)][static_cast<size_t>(micro_batch)] = operations;
    }
  }
}

}  // namespace

SlotsAnswer choose_slots(const SlotsRequest& request) {
  const schedule::Schedule& schedule = request.schedule;
  PENSTOCK_CHECK(request.cuts.size() == schedule.rank_of.size() + 1,
                 "cuts that do not belong to the schedule");
  PENSTOCK_CHECK(request.limit_bytes.empty() || request.limit_bytes.size() == schedule.turns.size(),
                 "limits that do not belong to the schedule");
  StageMenus menus(request);
  std::vector<int64_t> limits = request.limit_bytes;
  if (limits.empty()) {
    limits.assign(schedule.turns.size(), std::numeric_limits<int64_t>::max() / 2);
  }
  std::vector<RankMemory> memories;
  for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
    memories.emplace_back(request.table, schedule, request.cuts, rank);
  }
  std::vector<RankSlots> ranks;
  for (const RankMemory& memory : memories) {
    ranks.emplace_back(memory, menus.choices());
  }

  SlotsAnswer answer;
  answer.is_feasible = true;
  std::vector<RankSlots::Assignment> assignments;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    RankSlots::Least least =
        request.mode == SlotMode::Apart ? ranks[rank].least() : ranks[rank].least_uniform();
    answer.least_bytes.push_back(least.peak.bytes);
    answer.binding.push_back(schedule.turns[rank][static_cast<size_t>(least.peak.turn)]);
    answer.is_feasible = answer.is_feasible && least.peak.bytes <= limits[rank];
    assignments.push_back(std::move(least.assignment));
  }
  if (answer.is_feasible && request.mode != SlotMode::KeepAll && !request.limit_bytes.empty()) {
    for (size_t rank = 0; rank < memories.size(); ++rank) {
      menus.add_for(memories[rank], limits[rank]);
    }
  }
  SlotSearch search(schedule, ranks, limits, transfer_seconds(request));
  if (answer.is_feasible && request.mode == SlotMode::Uniform) {
    assignments = search.fastest_uniform(std::move(assignments));
  } else if (answer.is_feasible && request.mode == SlotMode::Apart) {
    assignments = search.fastest(std::move(assignments));
  }

  fill_in(request, ranks, assignments, answer);
  answer.seconds = search.seconds(assignments);
  return answer;
}

}  // namespace penstock::plan
