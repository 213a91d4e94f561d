// What the ranks of a plan hold from step to step: computed from the model's sizes, by the inventory
// that parameters and optimizers allocate from.
#pragma once

#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/plan/cost_table.h"
#include "penstock/plan/holdings.h"
#include "penstock/plan/machine.h"
#include "penstock/plan/model_sizes.h"
#include "penstock/plan/pipeline.h"

namespace penstock::plan {

// What a GPU's work holds at every rank beside the model, as a table has it.
inline constexpr const char* kWorkspacesName = "workspaces";
// What a rank of each stage runs, the loss (the number of layers) included; ascending.
std::vector<std::vector<int32_t>> layers_by_rank(const Pipeline& pipeline);

// Of every rank.
std::vector<Inventory> all_inventories(const config::PlanOptions& options,
                                       const ModelSizes& model,
                                       const Pipeline& pipeline);
Holdings all_holdings(const config::PlanOptions& options,
                      const ModelSizes& model,
                      const Pipeline& pipeline,
                      const CostTable& costs,
                      const Machine& machine);
// Of each stage: of the replica that holds most.
Holdings stage_holdings(const config::PlanOptions& options,
                        const ModelSizes& model,
                        const Pipeline& pipeline,
                        const CostTable& costs,
                        const Machine& machine);

// Of one rank that has the whole model.
Holdings whole_holdings(const ModelSizes& model, const CostTable& costs, const Machine& machine);

// Of each stage, for copies of weights that an asynchronous pipeline keeps.
std::vector<int64_t> copy_bytes_by_stage(const ModelSizes& model,
                                         const Pipeline& pipeline,
                                         const Machine& machine);

}  // namespace penstock::plan
