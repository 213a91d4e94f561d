// What the ranks of a run hold from step to step, and how their replicas divide it: computed from
// shapes, by the inventory that parameters and optimizers allocate from.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/config/recipe.h"
#include "penstock/model/chain.h"
#include "penstock/model/units.h"
#include "penstock/plan/exchanges.h"
#include "penstock/plan/holdings.h"
#include "penstock/plan/pipeline.h"
#include "penstock/plan/shard.h"
#include "penstock/run/replicas.h"
#include "penstock/run/stages.h"

namespace penstock::train {

// What a GPU's work holds at every rank beside the model, as a table has it.
inline constexpr const char* kWorkspacesName = "workspaces";

// Where the stages begin: `cuts`.
model::Replication replication_of(const config::Recipe& recipe,
                                  const model::Chain& chain,
                                  const std::vector<int32_t>& cuts,
                                  int32_t replica);

// Of every rank.
plan::Holdings all_holdings(const config::Recipe& recipe,
                            const model::Chain& chain,
                            const plan::Pipeline& pipeline,
                            const plan::CostTable& costs);
// Of each stage of ranks: of the replica that holds most.
plan::Holdings stage_holdings(const config::Recipe& recipe,
                              const model::Chain& chain,
                              const plan::Pipeline& pipeline,
                              const plan::CostTable& costs);
// Of the only rank. `held_bytes`: what the device holds already; what the inventory does not know of
// that is a value of its own.
plan::Holdings holdings_alone(const config::Recipe& recipe,
                              const model::Parameters& parameters,
                              int64_t held_bytes);

// Of one rank that has the whole model, whatever the recipe's ranks are.
plan::Holdings whole_holdings(const config::Recipe& recipe, const model::Chain& chain);

// How replicas divide the units.
plan::Sharding sharding_of(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const std::vector<int32_t>& cuts,
                           const plan::LinkCost& line);
// The program of a step with these exchanges, from that of another that reduces gradients. `line`:
// what a message between ranks takes.
program::Program write_form(program::Program program,
                            const config::Recipe& recipe,
                            const model::Chain& chain,
                            const run::Stages& stages,
                            const plan::LinkCost& line,
                            const plan::UpdateForm& form);
// Of the first step of a run.
plan::UpdateForm first_form(const config::Recipe& recipe);

// As the recipe says, for ranks that are threads or processes.
run::ReplicaOptions replica_options(const config::Recipe& recipe, const comm::Group& group);

}  // namespace penstock::train
