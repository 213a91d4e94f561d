// What the ranks of a run hold during the whole step, and how their replicas divide it: computed
// from shapes, as build_rank_model() will allocate it.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/config/recipe.h"
#include "penstock/model/chain.h"
#include "penstock/model/units.h"
#include "penstock/plan/pipeline.h"
#include "penstock/plan/pipeline_planner.h"
#include "penstock/plan/shard.h"
#include "penstock/run/replicas.h"

namespace penstock::train {

// What a GPU's work holds at every rank beside the model, as a table has it.
inline constexpr const char* kWorkspacesName = "workspaces";

// Where the stages begin: `cuts`.
model::Replication replication_of(const config::Recipe& recipe,
                                  const model::Chain& chain,
                                  const std::vector<int32_t>& cuts,
                                  int32_t replica);

// Of a rank that has `part` of the chain.
std::vector<program::Resident> residents_of(const config::Recipe& recipe,
                                            const model::Chain& chain,
                                            const model::Part& part,
                                            const plan::CostTable& costs,
                                            const model::Replication& replication);
// Of each stage of ranks; of the replica that holds most.
plan::Residents stage_residents(const config::Recipe& recipe,
                                const model::Chain& chain,
                                const plan::Pipeline& pipeline,
                                const plan::CostTable& costs);

// The units alone, without anybody's residents.
plan::Sharding units_of(const config::Recipe& recipe,
                        const model::Chain& chain,
                        const std::vector<int32_t>& cuts);
plan::Sharding sharding_of(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const plan::Pipeline& pipeline,
                           const plan::CostTable& costs);

// As the recipe says, for ranks that are threads or processes.
run::ReplicaOptions replica_options(const config::Recipe& recipe, const comm::Group& group);

}  // namespace penstock::train
