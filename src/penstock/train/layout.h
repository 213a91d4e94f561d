// How many ranks cut the layers, how many replicas each has, and what those divide: chosen where a
// recipe leaves it open, by planning every layout that the number of ranks allows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/config/recipe.h"
#include "penstock/device/device.h"
#include "penstock/model/chain.h"
#include "penstock/plan/cost_table.h"
#include "penstock/plan/pipeline.h"
#include "penstock/report/layout_text.h"

namespace penstock::train {

struct Layout {
  int64_t pipeline = 1;
  int64_t data = 1;
  std::string shard = "none";

  bool operator==(const Layout&) const = default;
};

// A layout that was planned.
struct LayoutPlan {
  Layout layout;
  bool is_feasible = false;
  double step_s = 0;       // predicted
  int64_t peak_bytes = 0;  // of the rank that holds most; where it does not fit, what it would need
  int64_t sent_bytes = 0;  // to replicas, of each step, by the rank that sends most
  std::string why_not;     // it cannot be planned at all
};

// Whether `ranks` ranks leave something of the layout to be chosen: neither plan.pipeline nor
// plan.data is given, or one of them and it divides the ranks, or plan.shard is "auto" and there
// are replicas.
bool leaves_layout_open(const config::PlanOptions& plan, int64_t ranks);

// Those that the recipe allows, the best first: one that fits before one that does not, the shorter
// step before the longer, and where they are within a hundredth the one that holds less.
std::vector<LayoutPlan> plan_layouts(const config::Recipe& recipe,
                                     const model::Chain& chain,
                                     const device::Device& device,
                                     int64_t ranks,
                                     const plan::LinkCost& line);

// With the layout filled in.
config::Recipe with_layout(config::Recipe recipe, const Layout& layout);

// What a message between ranks takes, measured by some. All ranks call it; all get the same.
plan::LinkCost probe_line(comm::Group& group);

std::vector<report::LayoutRow> layout_rows(const std::vector<LayoutPlan>& plans);

// The recipe with the best layout for the group's ranks, the same at all of them. Rank 0 plans, and
// says what it chose. Throws Error (exit code 1) where none fits.
config::Recipe choose_layout(const config::Recipe& recipe, comm::Group& group);

}  // namespace penstock::train
