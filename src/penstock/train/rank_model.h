// What one rank of a run has of the model: the parameters of its layers, their optimizer, and the plan
// of the step. A run of one rank is the ordinary case, with all layers.
#pragma once

#include <memory>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/config/recipe.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/pipeline_planner.h"
#include "penstock/run/rank_forward.h"
#include "penstock/train/planning.h"

namespace penstock::train {

struct RankModel {
  run::Stages stages;
  std::vector<model::Part> parts;  // of every rank
  std::unique_ptr<model::Parameters> parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
  Planned planned;  // the program of all ranks; bytes are those of the rank that holds most
  std::vector<int64_t> predicted_peaks;  // of each rank; empty: not predicted
};

// All ranks call it: rank 0 measures and plans, the others get its answer. Throws Error (exit code 1)
// when the step does not fit.
RankModel build_rank_model(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const device::Device& device,
                           comm::Group& group,
                           bool predicts);

// The costs of a pipeline's layers, measured with the parameters of one layer of each kind.
plan::CostTable measure_pipeline(const config::Recipe& recipe, const model::Chain& chain);

// What [plan] asks for; who holds what is left to the caller.
plan::PipelineRequest pipeline_request(const config::PlanOptions& options);

plan::PipelineResult plan_pipeline(const config::Recipe& recipe,
                                   const model::Chain& chain,
                                   const plan::CostTable& costs);

}  // namespace penstock::train
