// Pipelines that are not drained for an update. The order is that of 1f1b over the micro-batches of
// all updates; a rank updates its weights by itself, as soon as it has the gradients of a batch.
// What differs is with which weights a micro-batch goes forward and back.
#include <algorithm>

#include "penstock/base/error.h"
#include "penstock/schedule/kinds.h"

namespace penstock::schedule {

namespace {

// `updates_done`: of the rank, when the forward's turn comes.
int32_t forward_version(Kind kind, int32_t batch, int32_t updates_done) {
  switch (kind) {
    case Kind::PipeDream:
      return updates_done;
    case Kind::PipeDream2BW:  // a batch back, on every rank: all stages have the same version
      return std::max(0, batch - 1);
    default:
      return kNewest;
  }
}

}  // namespace

Schedule make_asynchronous(Kind kind, int32_t ranks, int32_t micro_batches, int32_t updates) {
  Schedule schedule = make_one_f_one_b(ranks, micro_batches * updates);
  schedule.updates = updates;
  for (std::vector<Turn>& turns : schedule.turns) {
    std::vector<Turn> with_updates;
    std::vector<int32_t> version_of;  // by micro-batch, once it has gone forward
    int32_t updates_done = 0;
    for (Turn turn : turns) {
      if (turn.phase == Phase::Forward) {
        version_of.push_back(forward_version(kind, turn.micro_batch / micro_batches, updates_done));
      }
      turn.version = version_of[static_cast<size_t>(turn.micro_batch)];
      with_updates.push_back(turn);
      if (turn.phase == Phase::Backward && (turn.micro_batch + 1) % micro_batches == 0) {
        with_updates.push_back({Phase::Update, turn.stage, updates_done++});
      }
    }
    turns = std::move(with_updates);
  }
  return schedule;
}

Schedule without_updates(const Schedule& schedule) {
  Schedule rest = schedule;
  for (std::vector<Turn>& turns : rest.turns) {
    std::erase_if(turns, [](const Turn& turn) { return turn.phase == Phase::Update; });
  }
  return rest;
}

std::vector<int32_t> most_delayed(const Schedule& schedule) {
  std::vector<int32_t> result;
  const int32_t per_update = schedule.micro_batches / schedule.updates;
  for (const std::vector<Turn>& turns : schedule.turns) {
    int32_t updates_done = 0;
    int32_t most = 0;
    for (const Turn& turn : turns) {
      if (turn.phase == Phase::Update) {
        ++updates_done;
      } else if (turn.phase == Phase::Forward) {
        const int32_t version = turn.version == kNewest ? updates_done : turn.version;
        most = std::max(most, turn.micro_batch / per_update - version);
      }
    }
    result.push_back(most);
  }
  return result;
}

std::vector<int32_t> most_versions(const Schedule& schedule) {
  std::vector<int32_t> result;
  for (const std::vector<Turn>& turns : schedule.turns) {
    // Of each version, the last turn that works with it.
    std::vector<size_t> last_use(static_cast<size_t>(schedule.updates) + 1, 0);
    for (size_t i = 0; i < turns.size(); ++i) {
      if (turns[i].version != kNewest) {
        last_use[static_cast<size_t>(turns[i].version)] = i;
      }
    }
    int32_t updates_done = 0;
    int32_t most = 1;
    for (size_t i = 0; i < turns.size(); ++i) {
      if (turns[i].phase == Phase::Update) {
        ++updates_done;
        const auto older = std::count_if(last_use.begin(),
                                         last_use.begin() + updates_done,
                                         [&](size_t last) { return last > i; });
        most = std::max(most, static_cast<int32_t>(older) + 1);
      }
    }
    result.push_back(most);
  }
  return result;
}

}  // namespace penstock::schedule
