#include "penstock/schedule/clock.h"

#include <algorithm>

#include "penstock/base/error.h"
#include "penstock/schedule/walk.h"

namespace penstock::schedule {

double PhaseSeconds::operator()(const Turn& turn) const {
  switch (turn.phase) {
    case Phase::Forward:
      return forward;
    case Phase::Backward:
      return backward;
    case Phase::BackwardInput:
      return backward_input;
    case Phase::BackwardWeight:
      return backward_weight;
    case Phase::Update:
      break;
  }
  return update;
}

Clock run_clock(const Schedule& schedule,
                const std::function<double(const Turn&)>& seconds_of,
                double transfer_s) {
  const size_t ranks = schedule.turns.size();
  Clock clock;
  clock.first_start.assign(ranks, 0);
  clock.last_end.assign(ranks, 0);
  clock.start.resize(ranks);
  clock.end.resize(ranks);
  HandoverTable<double> made_at(schedule);
  const auto arrival = [&](const Handover& awaited, size_t rank) {
    const int32_t maker = schedule.rank_of[static_cast<size_t>(awaited.stage)];
    const bool is_here = static_cast<size_t>(maker) == rank;
    return made_at[awaited] + (is_here ? 0 : transfer_s);
  };

  const std::vector<size_t> done = walk(schedule, [&](size_t rank, size_t index) {
    const Turn& turn = schedule.turns[rank][index];
    double start = clock.last_end[rank];
    if (const std::optional<Handover> awaited = awaited_by(turn, schedule.stages())) {
      start = std::max(start, arrival(*awaited, rank));
    }
    const double end = start + seconds_of(turn);
    if (const std::optional<Handover> made = made_by(turn)) {
      made_at[*made] = end;
    }
    if (index == 0) {
      clock.first_start[rank] = start;
    }
    clock.start[rank].push_back(start);
    clock.end[rank].push_back(end);
    clock.last_end[rank] = end;
    clock.seconds = std::max(clock.seconds, end);
  });

  for (size_t rank = 0; rank < ranks; ++rank) {
    PENSTOCK_CHECK(done[rank] == schedule.turns[rank].size(),
                   "rank ",
                   rank,
                   " waits for ever before its turn ",
                   done[rank]);
  }
  return clock;
}

double bubble_of(const Clock& clock, double busy_s) {
  double step_s = 0;
  for (size_t rank = 0; rank < clock.last_end.size(); ++rank) {
    step_s = std::max(step_s, clock.last_end[rank] - clock.first_start[rank]);
  }
  return (step_s - busy_s) / step_s;
}

}  // namespace penstock::schedule
