// The layout of the ranks that there are, where a recipe leaves it open: the planner's choice, the
// same at all ranks.
#pragma once

#include <vector>

#include "penstock/comm/group.h"
#include "penstock/config/recipe.h"
#include "penstock/device/device.h"
#include "penstock/model/chain.h"
#include "penstock/plan/layouts.h"
#include "penstock/plan/machine.h"
#include "penstock/plan/planner.h"
#include "penstock/report/layout_text.h"
#include "penstock/train/subject.h"

namespace penstock::train {

// plan::plan_layouts with costs that are measured, once for each size of a micro-batch.
std::vector<plan::LayoutPlan> plan_layouts(const config::Recipe& recipe,
                                           const model::Chain& chain,
                                           const device::Device& device,
                                           int64_t ranks,
                                           const plan::Machine& machine);

// A plan for so many ranks of a recipe that may leave their layout open, for commands that train nothing.
struct PlannedRanks {
  config::Recipe recipe;  // with the layout
  plan::CostTable costs;
  plan::Machine machine;
  plan::Outcome result;
  // That were compared, the best first; none: the layout was given.
  std::vector<report::LayoutRow> layouts = {};
};
PlannedRanks plan_ranks(const config::Recipe& recipe,
                        int64_t ranks,
                        const plan::RotorOptions& rotor,
                        const Subject& subject = family_subject());

std::vector<report::LayoutRow> layout_rows(const std::vector<plan::LayoutPlan>& plans);

// The recipe with the best layout for the group's ranks, the same at all of them. Rank 0 plans, and
// says what it chose. Throws Error (exit code 1) where none fits.
config::Recipe choose_layout(const config::Recipe& recipe,
                             comm::Group& group,
                             const Subject& subject = family_subject());

}  // namespace penstock::train
