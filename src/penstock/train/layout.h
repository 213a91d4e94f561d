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
#include "penstock/report/layout_text.h"

namespace penstock::train {

// plan::plan_layouts with costs that are measured, once for each size of a micro-batch.
std::vector<plan::LayoutPlan> plan_layouts(const config::Recipe& recipe,
                                           const model::Chain& chain,
                                           const device::Device& device,
                                           int64_t ranks,
                                           const plan::Machine& machine);

std::vector<report::LayoutRow> layout_rows(const std::vector<plan::LayoutPlan>& plans);

// The recipe with the best layout for the group's ranks, the same at all of them. Rank 0 plans, and
// says what it chose. Throws Error (exit code 1) where none fits.
config::Recipe choose_layout(const config::Recipe& recipe, comm::Group& group);

}  // namespace penstock::train
