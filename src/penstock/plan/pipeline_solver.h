// The solver for pipelines, from a cost table to: which schedule, where the layers are cut, what each
// micro-batch keeps at each stage; or to the reasons why there is none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/plan/pipeline.h"
#include "penstock/plan/slots.h"
#include "penstock/plan/spent.h"
#include "penstock/program/simulate.h"

namespace penstock::plan {

struct PipelineRequest {
  std::optional<schedule::Kind> kind;  // nothing: the synchronous one with the shortest step
  int32_t ranks = 1;
  int32_t micro_batches = 1;  // of each update
  int32_t chunks = 2;
  int32_t updates = 1;                // of an asynchronous schedule, until it is drained
  std::vector<int32_t> first_layers;  // of the stages after the first; empty: chosen
  SlotMode mode = SlotMode::KeepAll;
  int64_t limit_bytes = 0;  // of every rank; 0: none
  LinkCost link;
  Spent* spent = nullptr;  // where the time of deciders is added up; nothing: nowhere
  // Nothing: holdings_by_rank, weight_bytes_by_rank.
  std::function<Holdings(const Pipeline&)> holdings;
  std::function<std::vector<int64_t>(const Pipeline&)> weight_bytes;
};

struct PipelineAnswer {
  bool is_feasible = false;
  schedule::Kind kind = schedule::Kind::OneFOneB;
  Pipeline pipeline;         // where it is not feasible: with the least bytes that were found
  program::Program program;  // verified; of `pipeline`
  double step_s = 0;         // of each update
  double bubble = 0;         // share of the step in which ranks do not compute
  std::vector<int64_t> peak_bytes;   // of each rank
  std::vector<int64_t> least_bytes;  // of each rank: the least limit found to do
  std::vector<std::string> binding;  // of each rank: the instruction that holds most
  int64_t recomputed_forwards = 0;
  // With replicas: what the rank that sends most sends them in a step, and how much of it because
  // weights are gathered for every use and not once.
  int64_t sent_bytes = 0;
  int64_t gathered_again_bytes = 0;

  // The other schedules that were looked at.
  struct RunnerUp {
    schedule::Kind kind;
    bool is_feasible;
    double step_s;
    int64_t peak_bytes;  // of the rank that holds most
  };
  std::vector<RunnerUp> runners_up;
};

// The share of a timeline in which ranks do not compute.
double idle_share(const program::Timeline& timeline);

// ConfigError for cuts that are none, and for more stages than layers.
PipelineAnswer solve_pipeline(const CostTable& table, const PipelineRequest& request);

}  // namespace penstock::plan
