// The planner: from what the user asks for, what layers cost and what the machine has, to a plan of
// the step, or to the reasons why there is none. One function for one rank and for many.
//
// Deciders, each in its file: pipeline_solver.h (schedule), cuts.h (cuts), slots.h (what each
// micro-batch in flight keeps), one_rank.h (what one rank keeps: exact). Around it, layouts.h calls
// it for every mesh that the ranks allow. Outcome::spent says how long each took.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/plan/lower_plan.h"
#include "penstock/plan/pipeline_solver.h"
#include "penstock/plan/plan.h"
#include "penstock/plan/rotor.h"

namespace penstock::plan {

struct Request {
  config::PlanOptions options;  // "auto" and empty: to be chosen
  RotorOptions rotor = {};      // of one rank
  int32_t updates = 1;          // that an asynchronous pipeline runs before it is drained
  ModelSizes model = {};        // not known: what the cost table says of it
};

// "Does not fit" is an answer, not an error.
struct Outcome {
  bool is_feasible = false;
  Plan plan;                 // where it is not feasible: with the least bytes that were found
  program::Program program;  // verified; of `plan`
  double step_s = 0;         // of each update
  double bubble = 0;         // share of the step in which ranks do not compute
  std::vector<int64_t> peak_bytes;   // of each rank
  std::vector<int64_t> least_bytes;  // of each rank: the least limit found to do; exact for one
  std::vector<std::string> binding;  // of each rank: the instruction that holds most there
  int64_t recomputed_forwards = 0;
  // With replicas: what the rank that sends most sends them in a step, and how much of it because
  // weights are gathered for every use and not once.
  int64_t sent_bytes = 0;
  int64_t gathered_again_bytes = 0;
  // One rank: the step when everything is kept, its peak, and the memory levels that rotor tells
  // apart.
  double unlimited_s = 0;
  int64_t unlimited_bytes = 0;
  int64_t slots = 0;
  std::vector<PipelineAnswer::RunnerUp> runners_up;  // other schedules that were looked at
  Spent spent;

  int64_t limit_bytes() const { return plan.options.memory_bytes(); }
  int64_t most_peak_bytes() const;   // of the rank that holds most
  int64_t most_least_bytes() const;  // of the rank that needs most
  int32_t micro_batches() const { return static_cast<int32_t>(plan.options.micro_batches); }
  schedule::Schedule schedule() const { return plan.schedule(program.updates); }
  std::vector<int32_t> cuts() const { return plan.cuts(program.loss_index()); }
};

// The layout is given: plan.pipeline, plan.data and plan.shard. ConfigError for cuts that are none,
// and for more stages than layers.
Outcome make_plan(const Request& request, const CostTable& costs, const Machine& machine);

// The outcome of a plan that was made before: lowered, verified, simulated. Nothing is decided.
Outcome take_plan(const Plan& plan,
                  const Request& request,
                  const CostTable& costs,
                  const Machine& machine);

}  // namespace penstock::plan
