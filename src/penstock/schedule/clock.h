// When each turn of a schedule begins and ends, if every rank starts its next turn as soon as it
// can. An estimate of schedules against each other: no memory, and a transfer that takes time but
// no one's.
#pragma once

#include <functional>
#include <vector>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

// The same for every stage and micro-batch.
struct PhaseSeconds {
  double forward = 0;
  double backward = 0;
  double backward_input = 0;
  double backward_weight = 0;
  double update = 0;

  double operator()(const Turn& turn) const;
};

struct Clock {
  double seconds = 0;                      // from the first start of all ranks to the last end
  std::vector<double> first_start;         // of each rank
  std::vector<double> last_end;            // of each rank
  std::vector<std::vector<double>> start;  // of each rank and turn
  std::vector<std::vector<double>> end;    // of each rank and turn
};

// A forward waits for the forward of the stage before, a backward for that of the stage after (at
// the last stage, for its own forward), a BackwardWeight for its BackwardInput; between ranks what
// is waited for arrives `transfer_s` after its end. The schedule must be without fault.
Clock run_clock(const Schedule& schedule,
                const std::function<double(const Turn&)>& seconds_of,
                double transfer_s);

// The share of a step in which a rank that is busy for `busy_s` waits. As in the zero-bubble paper,
// a step lasts from a rank's own first start to its last end, on the rank where that is longest.
double bubble_of(const Clock& clock, double busy_s);

}  // namespace penstock::schedule
