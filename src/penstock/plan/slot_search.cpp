#include "penstock/plan/slot_search.h"

#include <algorithm>
#include <limits>
#include <set>

namespace penstock::plan {

namespace {

constexpr int kRounds = 12;
constexpr size_t kMostSlotLevels = 3000;  // slots of a rank x levels of free bytes
constexpr size_t kMostTried = 24;         // choices of a micro-batch

StepClock::Seconds phase_seconds(const StageUse& use, schedule::Phase phase) {
  switch (phase) {
    case schedule::Phase::Forward:
      return {0, use.forward_s};
    case schedule::Phase::Backward:
    case schedule::Phase::BackwardInput:
      return {use.lead_s, use.backward_s - use.lead_s};
    case schedule::Phase::BackwardWeight:
      return {0, use.weight_s};
    case schedule::Phase::Update:
      break;
  }
  return {};
}

// No choice ends a turn earlier.
StepClock::Seconds least_seconds(const RankSlots::Choices& choices, schedule::Phase phase) {
  const double kMost = std::numeric_limits<double>::infinity();
  double least = kMost, least_rest = kMost;
  for (const StageChoice& choice : choices) {
    const auto [lead, rest] = phase_seconds(choice.use, phase);
    least = std::min(least, lead + rest);
    least_rest = std::min(least_rest, rest);
  }
  return {least - least_rest, least_rest};
}

// Some of all, the closer to `level` the denser.
std::vector<int64_t> levels_near(const std::vector<int64_t>& all, int64_t level) {
  const auto at = std::lower_bound(all.begin(), all.end(), level) - all.begin();
  std::vector<int64_t> near;
  const auto add = [&](std::ptrdiff_t i) {
    if (i >= 0 && i < std::ssize(all)) {
      near.push_back(all[static_cast<size_t>(i)]);
    }
  };
  for (std::ptrdiff_t step = 16; step > 0; step /= 2) {
    add(at - step);
  }
  add(at);
  for (std::ptrdiff_t step = 1; step <= 16; step *= 2) {
    add(at + step);
  }
  return near;
}

}  // namespace

bool SlotSearch::Score::operator<(const Score& other) const {
  // Sums in another order differ in their last bits.
  const double tolerance = 1e-12 * other.step;
  return step < other.step - tolerance ||
         (step <= other.step + tolerance && work < other.work * (1 - 1e-12));
}

SlotSearch::SlotSearch(const schedule::Schedule& schedule,
                       const std::vector<RankSlots>& ranks,
                       const std::vector<int64_t>& limit_bytes,
                       const std::vector<StepClock::Transfer>& transfers)
    : ranks_(ranks), limits_(limit_bytes), clock_(schedule, transfers) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& items = ranks[rank].memory().items();
    for (const schedule::Turn& turn : schedule.turns[rank]) {
      const auto item = std::find_if(items.begin(), items.end(), [&](const RankMemory::Item& one) {
        return one.stage == turn.stage && one.micro_batch == turn.micro_batch;
      });
      places_.push_back({rank, static_cast<size_t>(item - items.begin()), turn.phase});
    }
  }
  turn_seconds_.resize(places_.size());
  for (size_t turn = 0; turn < places_.size(); ++turn) {
    const auto [rank, item, phase] = places_[turn];
    turn_seconds_[turn] = least_seconds(ranks[rank].choices_of(item), phase);
  }
  shortest_s_ = clock_.run(turn_seconds_);
}

bool SlotSearch::is_shortest(const Score& score) const {
  return score.step <= shortest_s_ * (1 + 1e-12);
}

SlotSearch::Score SlotSearch::score(const Assignments& assignments) {
  Score result;
  for (size_t turn = 0; turn < places_.size(); ++turn) {
    const auto [rank, item, phase] = places_[turn];
    turn_seconds_[turn] = phase_seconds(ranks_[rank].use(assignments[rank], item), phase);
    result.work += turn_seconds_[turn].lead + turn_seconds_[turn].rest;
  }
  result.step = clock_.run(turn_seconds_);
  return result;
}

double SlotSearch::seconds(const Assignments& assignments) {
  return score(assignments).step;
}

std::vector<SlotSearch::Chosen> SlotSearch::critical_items(const Assignments& assignments) {
  score(assignments);
  std::set<Chosen> items;
  for (const auto& [turn, with_lead] : clock_.critical_turns()) {
    items.insert({places_[turn].rank, places_[turn].item});
  }
  return {items.begin(), items.end()};
}

SlotSearch::Assignments SlotSearch::fastest_uniform(Assignments start) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (auto found = ranks_[rank].fastest_uniform(limits_[rank])) {
      start[rank] = std::move(*found);
    }
  }
  return start;
}

// Every second is worth the same at first; then those on the longest path are worth more and more.
void SlotSearch::solve_by_worth(Assignments& best) {
  std::vector<std::vector<RankSlots::Worth>> worth;
  std::vector<std::vector<int64_t>> levels;
  for (const RankSlots& rank : ranks_) {
    worth.emplace_back(rank.memory().items().size());
    const size_t slots = static_cast<size_t>(rank.memory().most_in_flight());
    levels.push_back(rank.levels(std::clamp<size_t>(kMostSlotLevels / slots, 16, 400)));
  }
  Score best_score = score(best);
  Assignments now = best;
  std::vector<char> has_changed(ranks_.size(), 1);
  for (int round = 0; round < kRounds && !is_shortest(best_score); ++round) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (has_changed[rank] == 0) {
        continue;
      }
      if (auto found = ranks_[rank].fastest(limits_[rank], worth[rank], levels[rank])) {
        now[rank] = std::move(found->assignment);
        levels[rank] = levels_near(ranks_[rank].levels(), found->level);
      }
      has_changed[rank] = 0;
    }
    const Score next = score(now);
    if (next < best_score) {
      best_score = next;
      best = now;
    }
    for (const auto& [turn, with_lead] : clock_.critical_turns()) {
      RankSlots::Worth& one = worth[places_[turn].rank][places_[turn].item];
      one.rest += 1;
      one.lead += with_lead ? 1 : 0;
      has_changed[places_[turn].rank] = 1;
    }
  }
}

// All of a stage, or as many of them as can be tried against each other.
std::vector<int32_t> SlotSearch::few_choices(const Chosen& which) const {
  const size_t count = ranks_[which.rank].choices_of(which.item).size();
  const size_t few = std::min(count, kMostTried);
  std::vector<int32_t> list;
  for (size_t i = 0; i < few; ++i) {
    list.push_back(static_cast<int32_t>(few == 1 ? 0 : i * (count - 1) / (few - 1)));
  }
  return list;
}

bool SlotSearch::fits(const Assignments& assignments, size_t rank) {
  work_left_ -= std::ssize(assignments[rank]);
  return ranks_[rank].fits(assignments[rank], limits_[rank]);
}

bool SlotSearch::is_better(const Assignments& assignments, Score& best_score) {
  work_left_ -= std::ssize(places_);
  const Score next = score(assignments);
  if (next < best_score) {
    best_score = next;
    return true;
  }
  return false;
}

// Another choice for one micro-batch; where it does not fit alone, one of its neighbours gives way.
bool SlotSearch::improve_one(Assignments& best, Score& best_score, const Chosen& which) {
  const RankSlots& rank = ranks_[which.rank];
  int32_t& choice = best[which.rank][which.item];
  const int32_t now = choice;
  const StageUse& use_now = rank.use(best[which.rank], which.item);
  for (const int32_t other : few_choices(which)) {
    if (other == now || work_left_ <= 0) {
      continue;
    }
    choice = other;
    if (fits(best, which.rank)) {
      if (is_better(best, best_score)) {
        return true;
      }
      continue;
    }
    const StageUse& use = rank.use(best[which.rank], which.item);
    const bool is_faster = use.seconds() < use_now.seconds() ||
                           use.seconds() - use.lead_s < use_now.seconds() - use_now.lead_s;
    if (is_faster && make_room(best, best_score, which)) {
      return true;
    }
  }
  choice = now;
  return false;
}

bool SlotSearch::make_room(Assignments& best, Score& best_score, const Chosen& which) {
  const RankSlots& rank = ranks_[which.rank];
  for (size_t item = 0; item < best[which.rank].size(); ++item) {
    if (item == which.item) {
      continue;
    }
    int32_t& choice = best[which.rank][item];
    const int32_t now = choice;
    const StageUse& use_now = rank.use(best[which.rank], item);
    for (const int32_t other : few_choices({which.rank, item})) {
      choice = other;
      const StageUse& use = rank.use(best[which.rank], item);
      const bool gives = use.held < use_now.held || use.backward_peak < use_now.backward_peak ||
                         use.forward_peak < use_now.forward_peak;
      if (gives && fits(best, which.rank) && is_better(best, best_score)) {
        return true;
      }
    }
    choice = now;
  }
  return false;
}

void SlotSearch::improve(Assignments& best) {
  Score best_score = score(best);
  for (bool moves = true; moves && work_left_ > 0 && !is_shortest(best_score);) {
    moves = false;
    for (const Chosen& which : critical_items(best)) {
      if (improve_one(best, best_score, which)) {
        moves = true;
        break;  // another path may be the longest now
      }
    }
  }
}

SlotSearch::Assignments SlotSearch::fastest(Assignments start) {
  Assignments best = fastest_uniform(std::move(start));
  solve_by_worth(best);
  improve(best);
  return best;
}

}  // namespace penstock::plan
