// From a recipe to the costs of its step and to a plan. Shared by train, plan, profile, simulate
// and check.
#pragma once

#include <string>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/plan_file.h"
#include "penstock/plan/planner.h"
#include "penstock/plan/remedy.h"

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
  bool is_quick = false;         // few rounds: to compare, not to promise
  bool measures_halves = false;  // also backward in two halves, for pipelines
  bool shows_progress = true;
};

// Measured on random tokens. Only for an optimizer that has done no step yet; it and the weights
// are afterwards as before, gradients are not.
plan::CostTable measure_costs(const config::Recipe& recipe,
                              const model::Chain& chain,
                              model::Parameters& parameters,
                              optim::Optimizer& optimizer,
                              const CostOptions& options = {});

// Plans as the recipe says. A plan that was made with a table from a file is proved once more with
// the bytes that the layers really need; throws Error (exit code 1) with the numbers when it breaks
// the limit then.
struct Planned {
  plan::CostTable costs;
  plan::Outcome result;
};
Planned make_plan(const config::Recipe& recipe,
                  const model::Chain& chain,
                  model::Parameters& parameters,
                  optim::Optimizer& optimizer,
                  const plan::RotorOptions& rotor = {});

// The plan of a run that is about to begin. Where nothing needs a prediction (no limit, no cost
// table, and not `predicts`) nothing is measured, and the plan has no seconds. Throws Error (exit
// code 1) when the step does not fit.
Planned plan_run(const config::Recipe& recipe,
                 const model::Chain& chain,
                 model::Parameters& parameters,
                 optim::Optimizer& optimizer,
                 bool predicts);

// A plan that was made before, for the only rank: proved with the bytes that the layers really need.
// Throws Error (exit code 1) when it breaks its limit then.
Planned take_plan(const config::Recipe& recipe,
                  const model::Chain& chain,
                  model::Parameters& parameters,
                  optim::Optimizer& optimizer,
                  const plan::PlanFile& given);

// The same for commands that have no model yet.
Planned plan_recipe(const config::Recipe& recipe, const plan::RotorOptions& rotor = {});
plan::CostTable measure_recipe(const config::Recipe& recipe);

// What changes of the recipe would do to a step that does not fit: each is measured, in few rounds.
std::vector<plan::Remedy> find_remedies(const config::Recipe& recipe);

}  // namespace penstock::train
