// find_fault and most_in_flight. First each rank's list by itself, then the ranks together.
#include <algorithm>
#include <array>

#include "penstock/base/text.h"
#include "penstock/schedule/schedule.h"
#include "penstock/schedule/walk.h"

namespace penstock::schedule {

namespace {

std::string describe(const Turn& turn) {
  constexpr std::array<const char*, 5> names{
      "forward", "backward", "backward-input", "backward-weight", "update"};
  if (turn.phase == Phase::Update) {
    return cat("update ", turn.micro_batch, " at stage ", turn.stage);
  }
  return cat(names[static_cast<size_t>(turn.phase)],
             " of micro-batch ",
             turn.micro_batch,
             " at stage ",
             turn.stage);
}

// How many micro-batches a stage has brought through each part of the work. A whole backward counts
// as input gradient and weight gradient at once: it is held to the same order as a split one.
struct Progress {
  int32_t forward = 0;
  int32_t input_gradient = 0;
  int32_t weight_gradient = 0;
  int32_t updates = 0;
};

std::string fault_of_sizes(const Schedule& schedule) {
  if (schedule.updates < 1 || schedule.micro_batches % schedule.updates != 0) {
    return cat(schedule.updates, " updates for ", schedule.micro_batches, " micro-batches");
  }
  if (schedule.turns.empty() || schedule.rank_of.empty() || schedule.micro_batches < 1) {
    return cat("a schedule of ",
               schedule.ranks(),
               " ranks, ",
               schedule.stages(),
               " stages and ",
               schedule.micro_batches,
               " micro-batches has nothing to run");
  }
  for (int32_t stage = 0; stage < schedule.stages(); ++stage) {
    const int32_t rank = schedule.rank_of[static_cast<size_t>(stage)];
    if (rank < 0 || rank >= schedule.ranks()) {
      return cat("stage ", stage, " is on rank ", rank, " of ", schedule.ranks());
    }
  }
  return "";
}

std::string fault_of_place(const Schedule& schedule, const Turn& turn, int32_t rank) {
  if (turn.stage < 0 || turn.stage >= schedule.stages()) {
    return cat("there are ", schedule.stages(), " stages");
  }
  const bool is_update = turn.phase == Phase::Update;
  const int32_t count = is_update ? schedule.updates : schedule.micro_batches;
  if (turn.micro_batch < 0 || turn.micro_batch >= count) {
    return cat("there are ", count, is_update ? " updates" : " micro-batches");
  }
  const int32_t owner = schedule.rank_of[static_cast<size_t>(turn.stage)];
  return owner == rank ? "" : cat("the stage is on rank ", owner);
}

std::string fault_of_count(int32_t& next, const Turn& turn) {
  if (turn.micro_batch < next) {
    return "it has been run before";
  }
  if (turn.micro_batch > next) {
    return cat(turn.phase == Phase::Update ? "update " : "micro-batch ", next, " comes first");
  }
  ++next;
  return "";
}

// An update takes the gradients of its micro-batches, all of them and no others.
std::string fault_of_update(Progress& progress, const Turn& turn, int32_t per_update) {
  const int32_t wanted = (turn.micro_batch + 1) * per_update;
  if (progress.weight_gradient != wanted) {
    return cat("it takes the gradients of ",
               wanted,
               " micro-batches, and those of ",
               progress.weight_gradient,
               " are there");
  }
  return fault_of_count(progress.updates, turn);
}

// Counts the turn, or says what is wrong with it.
std::string fault_of_turn(Progress& progress, const Turn& turn, int32_t per_update) {
  if (turn.version > progress.updates) {
    return cat("it wants weights after ",
               turn.version,
               " updates, and there have been ",
               progress.updates);
  }
  switch (turn.phase) {
    case Phase::Update:
      return fault_of_update(progress, turn, per_update);
    case Phase::Forward:
      return fault_of_count(progress.forward, turn);
    case Phase::Backward:
    case Phase::BackwardInput: {
      if (turn.micro_batch >= progress.forward) {
        return "its forward has not been run";
      }
      std::string fault = fault_of_count(progress.input_gradient, turn);
      if (!fault.empty() || turn.phase == Phase::BackwardInput) {
        return fault;
      }
      return fault_of_count(progress.weight_gradient, turn);
    }
    case Phase::BackwardWeight:
      if (turn.micro_batch >= progress.input_gradient) {
        return "its backward-input has not been run";
      }
      return fault_of_count(progress.weight_gradient, turn);
  }
  return "no such phase";
}

std::string fault_of_lists(const Schedule& schedule) {
  std::vector<Progress> progress(schedule.rank_of.size());
  for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
    for (const Turn& turn : schedule.turns[static_cast<size_t>(rank)]) {
      std::string fault = fault_of_place(schedule, turn, rank);
      if (fault.empty()) {
        fault = fault_of_turn(progress[static_cast<size_t>(turn.stage)],
                              turn,
                              schedule.micro_batches / schedule.updates);
      }
      if (!fault.empty()) {
        return cat("rank ", rank, ", ", describe(turn), ": ", fault);
      }
    }
  }
  const bool has_updates = std::any_of(
      progress.begin(), progress.end(), [](const Progress& done) { return done.updates > 0; });
  for (int32_t stage = 0; stage < schedule.stages(); ++stage) {
    const Progress& done = progress[static_cast<size_t>(stage)];
    const int32_t all = schedule.micro_batches;
    if (done.forward < all || done.input_gradient < all || done.weight_gradient < all) {
      return cat("stage ",
                 stage,
                 " runs ",
                 done.forward,
                 " forwards and makes ",
                 done.input_gradient,
                 " gradients of its input and ",
                 done.weight_gradient,
                 " of its parameters, for ",
                 all,
                 " micro-batches");
    }
    if (has_updates && done.updates < schedule.updates) {
      return cat("stage ", stage, " has ", done.updates, " of ", schedule.updates, " updates");
    }
  }
  return "";
}

std::string fault_of_waiting(const Schedule& schedule) {
  const std::vector<size_t> done = walk(schedule, [](size_t, size_t) {});
  size_t rank = 0;
  while (rank < done.size() && done[rank] == schedule.turns[rank].size()) {
    ++rank;
  }
  if (rank == done.size()) {
    return "";
  }
  // Every rank that stands waits for one that stands. After as many hops as there are ranks we are
  // in the circle, whether or not the first one was.
  const auto stopped_at = [&](size_t at) { return schedule.turns[at][done[at]]; };
  const auto awaited_rank = [&](size_t at) {
    const Handover awaited = awaited_by(stopped_at(at), schedule.stages()).value();
    return static_cast<size_t>(schedule.rank_of[static_cast<size_t>(awaited.stage)]);
  };
  for (size_t hop = 0; hop < done.size(); ++hop) {
    rank = awaited_rank(rank);
  }
  std::string text = "ranks wait for each other in a circle: ";
  const size_t first = rank;
  do {
    const size_t next = awaited_rank(rank);
    text += cat("rank ", rank, " (", describe(stopped_at(rank)), ") for rank ", next, ", ");
    rank = next;
  } while (rank != first);
  text.resize(text.size() - 2);
  return text;
}

}  // namespace

std::string find_fault(const Schedule& schedule) {
  for (const auto fault_of : {fault_of_sizes, fault_of_lists, fault_of_waiting}) {
    std::string fault = fault_of(schedule);
    if (!fault.empty()) {
      return fault;
    }
  }
  return "";
}

std::vector<double> most_in_flight(const Schedule& schedule) {
  std::vector<double> result;
  for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
    int32_t now = 0;
    int32_t most = 0;
    for (const Turn& turn : schedule.turns[static_cast<size_t>(rank)]) {
      if (turn.phase == Phase::Forward) {
        most = std::max(most, ++now);
      } else if (turn.phase == Phase::Backward || turn.phase == Phase::BackwardWeight) {
        --now;
      }
    }
    const auto stages = std::count(schedule.rank_of.begin(), schedule.rank_of.end(), rank);
    result.push_back(stages == 0 ? 0 : most / static_cast<double>(stages));
  }
  return result;
}

}  // namespace penstock::schedule
