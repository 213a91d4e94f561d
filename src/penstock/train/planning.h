// From a recipe to a plan of its step, for one rank and for many. Shared by train, plan, profile,
// simulate and check.
#pragma once

#include <optional>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/device/device.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/plan/machine.h"
#include "penstock/plan/plan_file.h"
#include "penstock/plan/planner.h"
#include "penstock/plan/remedy.h"
#include "penstock/train/costs.h"
#include "penstock/train/subject.h"

namespace penstock::train {

struct Planned {
  plan::CostTable costs = {};
  plan::Outcome result = {};
  std::optional<plan::CostTable> proved =
      {};  // costs from a file, with the bytes that were measured

  const plan::CostTable& bytes() const { return proved ? *proved : costs; }
};

struct PlanSource {
  bool predicts = false;                  // measures costs even where no limit makes that necessary
  const plan::PlanFile* given = nullptr;  // made before; nothing: it is made now
  plan::RotorOptions rotor = {};
  bool is_quick = false;  // see CostOptions
  bool proves = true;     // costs from a file, by measuring bytes
};

// What the planner is asked for.
plan::Request plan_request(const config::Recipe& recipe, const model::Chain& chain);

// Those of the recipe's table where it names one, else measured. ConfigError for a table of another
// model, and, before anything is measured, for a pipeline that cannot be cut.
plan::CostTable find_pipeline_costs(const config::Recipe& recipe,
                                    const model::Chain& chain,
                                    const device::Device& device);

// Plans as the recipe says, or takes the plan that is given; rank 0 does it for all. Where nothing
// needs seconds (one rank, no limit, no cost table, and not `predicts`) nothing is measured. Costs
// from a file are proved with the bytes that the layers really need: Error (exit code 1) with the
// numbers where the limit breaks then. "Does not fit" is an answer.
Planned find_plan(const config::Recipe& recipe,
                  const model::Chain& chain,
                  const device::Device& device,
                  const plan::Machine& machine,
                  const PlanSource& source);

// The same for a run that is about to begin: Error (exit code 1) where the step does not fit. On a GPU
// something is always measured, for that chooses algorithms.
Planned plan_run(const config::Recipe& recipe,
                 const model::Chain& chain,
                 const device::Device& device,
                 const plan::Machine& machine,
                 const PlanSource& source);

// A GPU's memory can be free and yet fragmented: where its allocator cannot place the plan within the
// limit, one that uses a little less is tried. Only for one rank that has a GPU and a limit; does
// nothing elsewhere. Leaves rubbish in the gradients.
void rehearse(const config::Recipe& recipe,
              const model::Chain& chain,
              const plan::Machine& machine,
              const PlanSource& source,
              model::Parameters& parameters,
              Planned& planned);

// For commands that train nothing.
Planned plan_recipe(const config::Recipe& recipe,
                    const plan::RotorOptions& rotor = {},
                    const Subject& subject = family_subject());
plan::CostTable measure_recipe(const config::Recipe& recipe);

// What changes of the recipe would do to a step that does not fit: each is measured, in few rounds.
std::vector<plan::Remedy> find_remedies(const config::Recipe& recipe,
                                        const Subject& subject = family_subject());

}  // namespace penstock::train
