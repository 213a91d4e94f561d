// What a recipe's layers cost: measured, or by their shapes.
#pragma once

#include <string>

#include "penstock/config/recipe.h"
#include "penstock/device/device.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/cost_table.h"

namespace penstock::train {

// Where a cost table that was not measured now comes from, for messages, and what to do about it.
struct TableOrigin {
  std::string name;  // "plan.costs = costs.json"
  std::string remedy;
};
TableOrigin table_of_recipe(const config::Recipe& recipe);
TableOrigin table_of_plan();

// ConfigError for a table of another model, or of other micro-batches.
void require_table_of(const plan::CostTable& table,
                      const model::Chain& chain,
                      const config::Recipe& recipe,
                      const TableOrigin& origin);

struct CostOptions {
  bool only_bytes = false;
  bool is_quick = false;        // few rounds: to compare, not to promise
  bool measures_split = false;  // also the split backward, for pipelines
  bool shows_progress = true;
};

// Measured on random tokens with the parameters of one layer of each kind, which are gone
// afterwards: nobody needs the whole model for it. One rank measures within the limit of its
// account; one of several lifts it meanwhile.
plan::CostTable measure_costs(const config::Recipe& recipe,
                              const model::Chain& chain,
                              const device::Device& device,
                              const CostOptions& options = {});

// The same with parameters that are there already. The optimizer must have done no step yet; it and
// the weights are afterwards as before, gradients are not.
plan::CostTable measure_costs(const config::Recipe& recipe,
                              const model::Chain& chain,
                              model::Parameters& parameters,
                              optim::Optimizer& optimizer,
                              const CostOptions& options = {});

// Bytes by the layers' shapes alone: no seconds. Enough for a program that is under no limit.
plan::CostTable costs_of_shapes(const config::Recipe& recipe,
                                const model::Chain& chain,
                                const device::Device& device);

}  // namespace penstock::train
