// What plans have to know of a recipe's model, and what a rank's parameters are made with.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/model/units.h"
#include "penstock/plan/machine.h"
#include "penstock/plan/model_sizes.h"
#include "penstock/run/replicas.h"

namespace penstock::train {

plan::ModelSizes model_sizes(const config::Recipe& recipe, const model::Chain& chain);

// Where the stages begin: `cuts`.
model::Replication replication_of(const config::Recipe& recipe,
                                  const model::Chain& chain,
                                  const std::vector<int32_t>& cuts,
                                  int32_t replica);

// As the recipe says, for ranks on this machine.
run::ReplicaOptions replica_options(const config::Recipe& recipe,
                                    const model::Chain& chain,
                                    const plan::Machine& machine);

}  // namespace penstock::train
