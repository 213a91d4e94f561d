#include "penstock/plan/rank_slots.h"

#include <algorithm>
#include <limits>
#include <set>

#include "penstock/plan/slot_labels.h"

namespace penstock::plan {

namespace {

constexpr size_t kMostLevels = 48;
constexpr size_t kMostForwardLevels = 5;
constexpr size_t kMostPerSlot = 40;  // choices

// What a choice needs beside what it holds.
int64_t extra_of(const StageUse& use) {
  return std::max(use.forward_peak, use.backward_peak) - use.held;
}

template <typename T>
void thin(std::vector<T>& list, size_t most) {
  if (list.size() <= most) {
    return;
  }
  for (size_t i = 0; i < most; ++i) {
    list[i] = list[i * (list.size() - 1) / (most - 1)];
  }
  list.resize(most);
}

}  // namespace

RankSlots::RankSlots(const RankMemory& memory, const std::vector<Choices>& choices)
    : memory_(memory), choices_(choices) {}

const RankSlots::Choices& RankSlots::choices_of(size_t item) const {
  return choices_[static_cast<size_t>(memory_.items()[item].stage)];
}

const StageUse& RankSlots::use(const Assignment& assignment, size_t item) const {
  return choices_of(item)[static_cast<size_t>(assignment[item])].use;
}

RankMemory::Peak RankSlots::peak(const Assignment& assignment) const {
  return memory_.peak([&](size_t item) -> const StageUse& { return use(assignment, item); });
}

bool RankSlots::fits(const Assignment& assignment, int64_t limit_bytes) const {
  const auto use_of = [&](size_t item) -> const StageUse& { return use(assignment, item); };
  return memory_.peak(use_of, limit_bytes).bytes <= limit_bytes;
}

double RankSlots::cost(const Assignment& assignment, const std::vector<Worth>& worth) const {
  double sum = 0;
  for (size_t item = 0; item < assignment.size(); ++item) {
    sum += worth[item].of(use(assignment, item));
  }
  return sum;
}

std::vector<RankSlots::Slot> RankSlots::slots_with(const std::vector<Worth>& worth) const {
  std::vector<Slot> slots;
  for (const int32_t stage : memory_.stages()) {
    const size_t begin = slots.size();
    const int32_t count = memory_.most_in_flight(stage);
    slots.resize(begin + static_cast<size_t>(count));
    for (size_t item = 0; item < memory_.items().size(); ++item) {
      if (memory_.items()[item].stage == stage) {
        Slot& slot = slots[begin + static_cast<size_t>(memory_.items()[item].micro_batch % count)];
        slot.stage = stage;
        slot.items.push_back(item);
        slot.worth.lead += worth[item].lead;
        slot.worth.rest += worth[item].rest;
      }
    }
  }
  return slots;
}

std::vector<int64_t> RankSlots::levels(size_t most) const {
  std::set<int64_t> all;
  for (const int32_t stage : memory_.stages()) {
    for (const StageChoice& choice : choices_[static_cast<size_t>(stage)]) {
      all.insert(extra_of(choice.use));
    }
  }
  std::vector<int64_t> list(all.begin(), all.end());
  thin(list, most);
  return list;
}

// Of those whose phases need no more than `level` beside what they hold, the best for what they
// hold, the best of all first.
std::vector<int32_t> RankSlots::choices_within(int32_t stage,
                                               int64_t level,
                                               const Worth& worth) const {
  const Choices& all = choices_[static_cast<size_t>(stage)];
  std::vector<int32_t> order;
  for (size_t i = 0; i < all.size(); ++i) {
    if (extra_of(all[i].use) <= level) {
      order.push_back(static_cast<int32_t>(i));
    }
  }
  const auto use = [&](int32_t i) -> const StageUse& { return all[static_cast<size_t>(i)].use; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return worth.of(use(a)) < worth.of(use(b));
  });
  std::vector<int32_t> list;
  for (const int32_t i : order) {
    if (list.empty() || use(i).held < use(list.back()).held) {
      list.push_back(i);
    }
  }
  thin(list, kMostPerSlot);
  return list;
}

// A knapsack over the slots, with `level` bytes left free for the phase that runs.
std::optional<RankSlots::Assignment> RankSlots::fill_slots(int64_t limit_bytes,
                                                           int64_t level,
                                                           const std::vector<Slot>& slots) const {
  // The slots of several stages are not all in use at the same time.
  const double share = static_cast<double>(slots.size()) / memory_.most_in_flight();
  const int64_t most_held =
      static_cast<int64_t>(share * static_cast<double>(std::max<int64_t>(0, limit_bytes - level)));
  std::vector<std::vector<Label>> lists{{Label{}}};
  for (const Slot& slot : slots) {
    Labels next(most_held);
    for (const int32_t choice : choices_within(slot.stage, level, slot.worth)) {
      const StageUse& use =
          choices_[static_cast<size_t>(slot.stage)][static_cast<size_t>(choice)].use;
      for (size_t parent = 0; parent < lists.back().size(); ++parent) {
        const Label& before = lists.back()[parent];
        const int64_t held = before.held + use.held;
        if (held <= most_held) {
          next.offer(
              {held, before.cost + slot.worth.of(use), static_cast<int32_t>(parent), choice});
        }
      }
    }
    lists.push_back(next.take());
  }
  const auto read = [&](size_t label) {
    Assignment assignment(memory_.items().size(), 0);
    for (size_t i = slots.size(); i > 0; --i) {
      const Label& one = lists[i][label];
      for (const size_t item : slots[i - 1].items) {
        assignment[item] = one.choice;
      }
      label = static_cast<size_t>(one.parent);
    }
    return assignment;
  };
  // More held is faster; what fits is found by halving.
  size_t fitting = 0, beyond = lists.back().size();
  std::optional<Assignment> best;
  while (fitting < beyond) {
    const size_t middle = (fitting + beyond) / 2;
    Assignment assignment = read(middle);
    if (fits(assignment, limit_bytes)) {
      best = std::move(assignment);
      fitting = middle + 1;
    } else {
      beyond = middle;
    }
  }
  return best;
}

// Where all micro-batches are in flight at once, each backward finds only those after it still
// there. So they are chosen from the last to the first, with `forward_level` bytes left free for
// forwards.
std::optional<RankSlots::Assignment> RankSlots::fill_from_the_end(
    int64_t limit_bytes, int64_t forward_level, const std::vector<Worth>& worth) const {
  const size_t count = memory_.items().size();
  const Choices& choices = choices_of(0);
  std::vector<int32_t> candidates;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].use.forward_peak - choices[i].use.held <= forward_level) {
      candidates.push_back(static_cast<int32_t>(i));
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&](int32_t a, int32_t b) {
    return choices[static_cast<size_t>(a)].use.seconds() <
           choices[static_cast<size_t>(b)].use.seconds();
  });
  thin(candidates, kMostPerSlot);
  std::vector<std::vector<Label>> lists{{Label{}}};
  for (size_t item = count; item-- > 0;) {
    Labels next(limit_bytes);
    for (const int32_t choice : candidates) {
      const StageUse& use = choices[static_cast<size_t>(choice)].use;
      for (size_t parent = 0; parent < lists.back().size(); ++parent) {
        const Label& before = lists.back()[parent];
        if (before.held + std::max(use.backward_peak, use.held + forward_level) > limit_bytes) {
          break;  // the rest hold more
        }
        next.offer({before.held + use.held,
                    before.cost + worth[item].of(use),
                    static_cast<int32_t>(parent),
                    choice});
      }
    }
    lists.push_back(next.take());
  }
  for (size_t label = lists.back().size(); label-- > 0;) {
    Assignment assignment(count, 0);
    size_t at = label;
    for (size_t i = count; i > 0; --i) {
      const Label& one = lists[i][at];
      assignment[count - i] = one.choice;
      at = static_cast<size_t>(one.parent);
    }
    if (fits(assignment, limit_bytes)) {
      return assignment;
    }
  }
  return std::nullopt;
}

// Each micro-batch takes the fastest choice that still fits, those of most worth first.
void RankSlots::speed_up(Assignment& assignment,
                         int64_t limit_bytes,
                         const std::vector<Worth>& worth) const {
  std::vector<size_t> order(assignment.size());
  for (size_t item = 0; item < order.size(); ++item) {
    order[item] = item;
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return worth[a].rest > worth[b].rest;
  });
  for (const size_t item : order) {
    for (size_t choice = 0; choice < choices_of(item).size(); ++choice) {
      const int32_t now = assignment[item];
      if (worth[item].of(choices_of(item)[choice].use) < worth[item].of(use(assignment, item))) {
        assignment[item] = static_cast<int32_t>(choice);
        if (!fits(assignment, limit_bytes)) {
          assignment[item] = now;
        }
      }
    }
  }
}

std::optional<RankSlots::Found> RankSlots::fastest(int64_t limit_bytes,
                                                   const std::vector<Worth>& worth,
                                                   const std::vector<int64_t>& levels) const {
  std::optional<Found> best;
  const auto offer = [&](std::optional<Assignment> assignment, int64_t level) {
    if (assignment.has_value()) {
      speed_up(*assignment, limit_bytes, worth);
      const double sum = cost(*assignment, worth);
      if (!best.has_value() || sum < best->worth) {
        best = {std::move(*assignment), level, sum};
      }
    }
  };
  const std::vector<Slot> slots = slots_with(worth);
  for (const int64_t level : levels) {
    offer(fill_slots(limit_bytes, level, slots), level);
  }
  const bool is_all_at_once =
      memory_.stages().size() == 1 && slots.size() == memory_.items().size();
  if (is_all_at_once) {
    std::vector<int64_t> few = levels;
    thin(few, kMostForwardLevels);
    for (const int64_t level : few) {
      offer(fill_from_the_end(limit_bytes, level, worth), level);
    }
  }
  return best;
}

RankSlots::Assignment RankSlots::uniform(const std::vector<int32_t>& by_stage) const {
  Assignment assignment;
  for (const RankMemory::Item& item : memory_.items()) {
    const auto at = std::find(memory_.stages().begin(), memory_.stages().end(), item.stage);
    assignment.push_back(by_stage[static_cast<size_t>(at - memory_.stages().begin())]);
  }
  return assignment;
}

// From the fastest choices to those that hold least, each time by the step that costs least seconds
// for the bytes that it frees.
template <typename Visit>
void RankSlots::walk_down(const std::vector<std::vector<int32_t>>& lists,
                          const Visit& visit) const {
  const auto& stages = memory_.stages();
  std::vector<size_t> at(stages.size(), 0);
  const auto use = [&](size_t i, size_t place) -> const StageUse& {
    return choices_[static_cast<size_t>(stages[i])][static_cast<size_t>(lists[i][place])].use;
  };
  for (std::optional<size_t> next = 0; next.has_value();) {
    std::vector<int32_t> by_stage;
    for (size_t i = 0; i < stages.size(); ++i) {
      by_stage.push_back(lists[i][at[i]]);
    }
    visit(uniform(by_stage));
    next.reset();
    double least_rate = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < stages.size(); ++i) {
      if (at[i] + 1 < lists[i].size()) {
        const StageUse& now = use(i, at[i]);
        const StageUse& then = use(i, at[i] + 1);
        const double rate =
            (then.seconds() - now.seconds()) / static_cast<double>(now.held - then.held);
        if (rate < least_rate) {
          least_rate = rate;
          next = i;
        }
      }
    }
    at[next.value_or(0)] += next.has_value() ? 1 : 0;
  }
}

// One choice for every stage of the rank: all of them where there is one stage; else, for each
// level of free bytes, on a walk from the fastest to the smallest.
template <typename Visit>
void RankSlots::for_all_uniform(const Visit& visit) const {
  if (memory_.stages().size() == 1) {
    for (size_t i = 0; i < choices_of(0).size(); ++i) {
      visit(uniform({static_cast<int32_t>(i)}));
    }
    return;
  }
  for (const int64_t level : levels(kMostLevels)) {
    std::vector<std::vector<int32_t>> lists;
    for (const int32_t stage : memory_.stages()) {
      lists.push_back(choices_within(stage, level, {}));
    }
    if (std::none_of(lists.begin(), lists.end(), [](const auto& list) { return list.empty(); })) {
      walk_down(lists, visit);
    }
  }
}

std::optional<RankSlots::Assignment> RankSlots::fastest_uniform(int64_t limit_bytes) const {
  std::optional<Assignment> best;
  const std::vector<Worth> worth(memory_.items().size());
  double best_cost = 0;
  for_all_uniform([&](Assignment assignment) {
    const double seconds = cost(assignment, worth);
    if ((!best.has_value() || seconds < best_cost) && fits(assignment, limit_bytes)) {
      best = std::move(assignment);
      best_cost = seconds;
    }
  });
  return best;
}

RankSlots::Least RankSlots::least_uniform() const {
  Least least;
  for_all_uniform([&](Assignment assignment) {
    const RankMemory::Peak peak_of_it = peak(assignment);
    if (least.assignment.empty() || peak_of_it.bytes < least.peak.bytes) {
      least = {std::move(assignment), peak_of_it};
    }
  });
  return least;
}

// From the best with one choice per stage: as long as another choice of one micro-batch at the
// highest turn lowers that turn and raises none to it.
RankSlots::Least RankSlots::least() const {
  Least least = least_uniform();
  const auto lower = [&] {
    for (const size_t item : memory_.items_at(least.peak.turn)) {
      const int32_t now = least.assignment[item];
      for (size_t choice = 0; choice < choices_of(item).size(); ++choice) {
        least.assignment[item] = static_cast<int32_t>(choice);
        const RankMemory::Peak next = peak(least.assignment);
        if (next.bytes < least.peak.bytes ||
            (next.bytes == least.peak.bytes && next.turn > least.peak.turn)) {
          least.peak = next;
          return true;
        }
      }
      least.assignment[item] = now;
    }
    return false;
  };
  const Least before = least;
  while (lower()) {
  }
  return least.peak.bytes < before.peak.bytes ? least : before;
}

}  // namespace penstock::plan
