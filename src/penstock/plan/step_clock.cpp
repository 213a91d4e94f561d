#include "penstock/plan/step_clock.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "penstock/base/error.h"

namespace penstock::plan {

namespace {

using schedule::Phase;
using schedule::Turn;

// Those who wait for a backward need only its input gradient.
Phase awaited(Phase phase) {
  return phase == Phase::BackwardInput ? Phase::Backward : phase;
}

Turn waits_for(const Turn& turn, int32_t last_stage) {
  switch (turn.phase) {
    case Phase::Forward:
      return {Phase::Forward, turn.stage - 1, turn.micro_batch};
    case Phase::Backward:
    case Phase::BackwardInput:
      return turn.stage == last_stage ? Turn{Phase::Forward, turn.stage, turn.micro_batch}
                                      : Turn{Phase::Backward, turn.stage + 1, turn.micro_batch};
    case Phase::BackwardWeight:
      return {Phase::Backward, turn.stage, turn.micro_batch};
    case Phase::Update:
      break;  // schedule::without_updates comes first
  }
  throw InternalError("no such phase");
}

}  // namespace

StepClock::StepClock(const schedule::Schedule& schedule, const std::vector<Transfer>& transfers) {
  std::map<std::tuple<Phase, int32_t, int32_t>, int32_t> found;
  std::vector<Turn> turns;
  for (const std::vector<Turn>& rank : schedule.turns) {
    for (size_t i = 0; i < rank.size(); ++i) {
      const int32_t node = static_cast<int32_t>(turns.size());
      found[{awaited(rank[i].phase), rank[i].stage, rank[i].micro_batch}] = node;
      nodes_.push_back({.before = i == 0 ? kNone : node - 1});
      turns.push_back(rank[i]);
    }
  }
  const auto rank_of = [&](int32_t stage) { return schedule.rank_of[static_cast<size_t>(stage)]; };
  for (size_t node = 0; node < nodes_.size(); ++node) {
    const Turn first = waits_for(turns[node], schedule.stages() - 1);
    if (first.stage < 0) {
      continue;
    }
    nodes_[node].waits_for = found.at({first.phase, first.stage, first.micro_batch});
    if (rank_of(first.stage) != rank_of(turns[node].stage)) {
      const int32_t boundary = std::min(first.stage, turns[node].stage);
      const Transfer& transfer = transfers[static_cast<size_t>(boundary)];
      nodes_[node].transfer_s =
          first.phase == Phase::Forward ? transfer.activation_s : transfer.gradient_s;
    }
  }
  // A node is placed when both that it waits for have been.
  std::vector<char> is_placed(nodes_.size(), 0);
  const auto is_ready = [&](int32_t node) {
    return node == kNone || is_placed[static_cast<size_t>(node)] != 0;
  };
  std::vector<size_t> next, end;
  size_t count = 0;
  for (const std::vector<Turn>& rank : schedule.turns) {
    next.push_back(count);
    count += rank.size();
    end.push_back(count);
  }
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t rank = 0; rank < next.size(); ++rank) {
      for (; next[rank] < end[rank] && is_ready(nodes_[next[rank]].waits_for); ++next[rank]) {
        is_placed[next[rank]] = 1;
        order_.push_back(static_cast<int32_t>(next[rank]));
        moves = true;
      }
    }
  }
  PENSTOCK_CHECK(order_.size() == nodes_.size(), "a schedule whose ranks wait in a circle");
  end_.resize(nodes_.size());
  held_up_by_.resize(nodes_.size());
}

double StepClock::run(const std::vector<Seconds>& seconds) {
  double latest = -1;
  for (const int32_t id : order_) {
    const size_t at = static_cast<size_t>(id);
    const Node& node = nodes_[at];
    double start =
        (node.before == kNone ? 0 : end_[static_cast<size_t>(node.before)]) + seconds[at].lead;
    int32_t held_up_by = node.before;
    if (node.waits_for != kNone) {
      const double arrival = end_[static_cast<size_t>(node.waits_for)] + node.transfer_s;
      if (arrival > start) {
        start = arrival;
        held_up_by = node.waits_for;
      }
    }
    end_[at] = start + seconds[at].rest;
    held_up_by_[at] = held_up_by;
    if (end_[at] > latest) {
      latest = end_[at];
      last_ = id;
    }
  }
  return latest;
}

std::vector<StepClock::Critical> StepClock::critical_turns() const {
  std::vector<Critical> path;
  for (int32_t node = last_; node != kNone;) {
    const size_t at = static_cast<size_t>(node);
    path.push_back({at, held_up_by_[at] == nodes_[at].before});
    node = held_up_by_[at];
  }
  return path;
}

}  // namespace penstock::plan
