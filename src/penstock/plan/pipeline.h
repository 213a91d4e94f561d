// A pipeline's plan and the program that it becomes.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/plan/holdings.h"
#include "penstock/plan/link_cost.h"
#include "penstock/plan/operations.h"
#include "penstock/plan/spent.h"
#include "penstock/program/program.h"
#include "penstock/schedule/schedule.h"

namespace penstock::plan {

// What one micro-batch does at one stage: first a sweep that leaves what is held, later the way
// back from there. `backward` of the last stage begins with the loss. Layers are those of the
// chain.
struct StageOperations {
  Operations forward;
  Operations backward;

  bool operator==(const StageOperations&) const = default;
};

struct Pipeline {
  schedule::Schedule schedule;
  // Stage s has layers cuts[s] .. cuts[s + 1] - 1; cuts[0] is 0, the last is the number of layers.
  // The loss belongs to the last stage.
  std::vector<int32_t> cuts;
  std::vector<std::vector<StageOperations>> operations;  // by stage and micro-batch
  LinkCost link;
  // Asynchronous pipelines: of each rank, what a copy of its weights holds.
  std::vector<int64_t> weight_bytes = {};
};

// Every layer keeps all, at every stage.
std::vector<std::vector<StageOperations>> keep_everything(const CostTable& table,
                                                          const std::vector<int32_t>& cuts,
                                                          int32_t micro_batches);

// What the ranks compute, send and free, and where each steps: the program before it has weights,
// gradients and state. Micro-batches are those of the schedule.
program::Program write_turns(const CostTable& table, const Pipeline& pipeline);

// Of the passes (passes.h) those that follow the turns and the replicas: what ranks hold, and how
// their weights move.
program::Program finish_program(program::Program program,
                                const Holdings& holdings,
                                const LinkCost& link,
                                int64_t limit_bytes);

// All passes, for ranks that have no replicas. holdings: of each rank. limit_bytes: of every rank; 0:
// none.
program::Program lower_pipeline(const CostTable& table,
                                const Pipeline& pipeline,
                                const Holdings& holdings,
                                int64_t limit_bytes,
                                Spent* spent = nullptr);

// The share of the chain's parameters that a rank has; an even one where the table does not say.
double parameter_share(const CostTable& table, const Pipeline& pipeline, int32_t rank);

// The bytes of each rank's parameters, by the table's own column.
std::vector<int64_t> weight_bytes_by_rank(const CostTable& table, const Pipeline& pipeline);

// The parameters, gradients and optimizer state of each rank's layers, by the table's own columns.
Holdings holdings_by_rank(const CostTable& table, const Pipeline& pipeline);

}  // namespace penstock::plan
