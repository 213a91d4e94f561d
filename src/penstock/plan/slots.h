// Recomputation in a pipeline: which operations every micro-batch takes at every stage, so that
// each rank stays within its bytes and the step is short. docs/rotor.md, "In a pipeline".
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/plan/pipeline.h"

namespace penstock::plan {

enum class SlotMode {
  KeepAll,  // nothing is recomputed
  Uniform,  // all micro-batches of a stage take the same operations
  Apart,    // each takes its own
};

struct SlotsRequest {
  const CostTable& table;
  const schedule::Schedule& schedule;
  std::vector<int32_t> cuts;         // as in Pipeline
  std::vector<int64_t> limit_bytes;  // of each rank, less its residents; empty: none
  LinkCost link = {};
  SlotMode mode = SlotMode::Apart;
};

struct SlotsAnswer {
  bool is_feasible = false;
  // By stage and micro-batch. Where it is not feasible: those that need the least bytes.
  std::vector<std::vector<StageOperations>> operations;
  double seconds = 0;                   // of all turns: without clearing and the optimizer's step
  std::vector<int64_t> peak_bytes;      // of each rank
  std::vector<int64_t> least_bytes;     // of each rank: the least limit found to do
  std::vector<schedule::Turn> binding;  // of each rank: the turn that needs those
  int64_t recomputed_forwards = 0;
};

SlotsAnswer choose_slots(const SlotsRequest& request);

}  // namespace penstock::plan
