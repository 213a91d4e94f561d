// How many ranks cut the layers, how many replicas each has, and what those divide: chosen where a
// recipe leaves it open, by planning every layout that the number of ranks allows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/config/recipe.h"
#include "penstock/plan/planner.h"

namespace penstock::plan {

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
bool leaves_layout_open(const config::PlanOptions& options, int64_t ranks);

// With the layout filled in.
config::Recipe with_layout(config::Recipe recipe, const Layout& layout);

// Plans a recipe whose layout is given. It decides what a micro-batch is, and so what layers cost.
using PlanLayout = std::function<Outcome(const config::Recipe&)>;

// Those that the recipe allows, the best first: one that fits before one that does not, the shorter
// step before the longer, and where they are within a hundredth the one that holds less.
std::vector<LayoutPlan> plan_layouts(const config::Recipe& recipe,
                                     int64_t ranks,
                                     const PlanLayout& plan);

}  // namespace penstock::plan
