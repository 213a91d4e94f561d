// From a recipe to the costs of its step and to a plan. Shared by train, plan, profile, simulate and
// check.
#pragma once

#include <string>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/planner.h"
#include "penstock/plan/remedy.h"

namespace penstock::train {

struct CostOptions {
  bool only_bytes = false;
  bool is_quick = false;  // few rounds: to compare, not to promise
  bool shows_progress = true;
};

// Measured on random tokens. Only for an optimizer that has done no step yet; it and the weights are
// afterwards as before, gradients are not.
plan::CostTable measure_costs(const config::Recipe& recipe,
                              const model::Chain& chain,
                              model::Parameters& parameters,
                              optim::Optimizer& optimizer,
                              const CostOptions& options = {});

// The recipe's cost table where it names one, else measured. Parameters, optimizer state and
// whatever else is held now count as residents either way.
plan::CostTable find_costs(const config::Recipe& recipe,
                           const model::Chain& chain,
                           model::Parameters& parameters,
                           optim::Optimizer& optimizer);

plan::PlanRequest plan_request(const config::Recipe& recipe);

// Plans as the recipe says. A plan that was made with a table from a file is proved once more with
// the bytes that the layers really need; throws Error (exit code 1) with the numbers when it breaks
// the limit then.
struct Planned {
  plan::CostTable costs;
  plan::PlanResult result;
};
Planned make_plan(const config::Recipe& recipe,
                  const model::Chain& chain,
                  model::Parameters& parameters,
                  optim::Optimizer& optimizer,
                  const plan::RotorOptions& rotor = {});

// Without measuring, so without seconds: for a run that is under no limit when nobody asked for a
// prediction.
Planned plan_from_sizes(const config::Recipe& recipe,
                        const model::Chain& chain,
                        const model::Parameters& parameters,
                        const optim::Optimizer& optimizer);

// The same for commands that have no model yet.
Planned plan_recipe(const config::Recipe& recipe, const plan::RotorOptions& rotor = {});
plan::CostTable measure_recipe(const config::Recipe& recipe);

// What changes of the recipe would do to a step that does not fit: each is measured, in few rounds.
std::vector<plan::Remedy> find_remedies(const config::Recipe& recipe);

}  // namespace penstock::train
