#include "penstock/schedule/walk.h"

namespace penstock::schedule {

std::optional<Handover> made_by(const Turn& turn) {
  if (turn.phase == Phase::BackwardWeight || turn.phase == Phase::Update) {
    return std::nullopt;
  }
  return Handover{turn.phase != Phase::Forward, turn.stage, turn.micro_batch};
}

std::optional<Handover> awaited_by(const Turn& turn, int32_t stages) {
  switch (turn.phase) {
    case Phase::Forward:
      if (turn.stage == 0) {
        return std::nullopt;
      }
      return Handover{false, turn.stage - 1, turn.micro_batch};
    case Phase::Backward:
    case Phase::BackwardInput:
      if (turn.stage + 1 == stages) {
        return Handover{false, turn.stage, turn.micro_batch};
      }
      return Handover{true, turn.stage + 1, turn.micro_batch};
    case Phase::BackwardWeight:
      return Handover{true, turn.stage, turn.micro_batch};
    case Phase::Update:
      break;
  }
  return std::nullopt;
}

std::vector<size_t> walk(const Schedule& schedule, const Visit& visit) {
  // char, not bool: a table of bools has no references.
  HandoverTable<char> is_made(schedule);
  std::vector<size_t> done(schedule.turns.size(), 0);
  const auto advance = [&](size_t rank) {
    const std::vector<Turn>& turns = schedule.turns[rank];
    const size_t before = done[rank];
    for (; done[rank] < turns.size(); ++done[rank]) {
      const Turn& turn = turns[done[rank]];
      const std::optional<Handover> awaited = awaited_by(turn, schedule.stages());
      if (awaited && !is_made[*awaited]) {
        break;
      }
      visit(rank, done[rank]);
      if (const std::optional<Handover> made = made_by(turn)) {
        is_made[*made] = 1;
      }
    }
    return done[rank] > before;
  };

  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (size_t rank = 0; rank < done.size(); ++rank) {
      has_moved |= advance(rank);
    }
  }
  return done;
}

}  // namespace penstock::schedule
