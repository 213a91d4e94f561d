// How replicas divide the units of a model, and what gathering and reducing them costs. shard.h
// puts that into a program.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "penstock/comm/collectives.h"
#include "penstock/config/recipe.h"
#include "penstock/plan/machine.h"
#include "penstock/plan/model_sizes.h"
#include "penstock/plan/shard.h"

namespace penstock::plan {

// Whether gradients go between replicas in bfloat16.
bool reduces_narrow(const config::PlanOptions& options, const ModelSizes& model);

// Whole gradients are reduced in buckets of several layers (plan.bucket); where replicas divide
// gradients or parameters, each layer is a unit.
std::vector<UnitSize> units_of(const config::PlanOptions& options,
                               const ModelSizes& model,
                               const std::vector<int32_t>& cuts);

// Which algorithm takes a message of so many bytes, as plan.collectives says.
std::function<comm::Algorithm(int64_t)> collective_algorithm(const config::PlanOptions& options,
                                                             const Machine& machine);

Sharding sharding_of(const config::PlanOptions& options,
                     const ModelSizes& model,
                     const std::vector<int32_t>& cuts,
                     const Machine& machine);

}  // namespace penstock::plan
