// A pipeline of numbers alone, without a model: every rank takes the same time for a phase of a
// micro-batch. To look at schedules, and to compare them with what others have published.
#pragma once

#include "penstock/plan/pipeline.h"
#include "penstock/program/simulate.h"

namespace penstock::plan {

struct BareTimes {
  double forward = 0, backward_input = 0, backward_weight = 0;  // of a rank's share of the model
  double transfer = 0;                                          // latency of a message
};

struct BarePipeline {
  schedule::Schedule schedule;
  program::Program program;  // verified; its values have no bytes
  program::Timeline timeline;
  double step = 0;  // from the first start of all to the last end, by the number of updates
  // Of the rank that is longest about its own part, from its first start to its last end, the share
  // in which it does nothing.
  double bubble = 0;
  std::vector<double> in_flight;  // micro-batches, at most, of each rank
};

BarePipeline run_bare_pipeline(schedule::Kind kind,
                               const schedule::Sizes& sizes,
                               const BareTimes& times);

}  // namespace penstock::plan
