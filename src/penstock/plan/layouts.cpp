#include "penstock/plan/layouts.h"

#include <algorithm>

#include "penstock/base/error.h"

namespace penstock::plan {

using program::kShards;

namespace {

bool leaves_degrees_open(const config::PlanOptions& options, int64_t ranks) {
  if (ranks <= 1 || options.ranks() == ranks) {
    return false;
  }
  const bool has_pipeline = options.pipeline > 1;
  const bool has_data = options.data > 1;
  return (!has_pipeline && !has_data) ||
         (has_pipeline && !has_data && ranks % options.pipeline == 0) ||
         (has_data && !has_pipeline && ranks % options.data == 0);
}

// All that the ranks can be, whether or not the recipe can.
std::vector<Layout> candidates(const config::Recipe& recipe, int64_t ranks) {
  const config::PlanOptions& plan = recipe.plan;
  std::vector<Layout> layouts;
  const bool is_open = leaves_degrees_open(plan, ranks);
  for (int64_t pipeline = 1; pipeline <= ranks; ++pipeline) {
    const int64_t data = ranks / pipeline;
    const bool is_given = is_open ? (plan.pipeline == 1 || plan.pipeline == pipeline) &&
                                        (plan.data == 1 || plan.data == data)
                                  : plan.pipeline == pipeline && plan.data == data;
    if (ranks % pipeline != 0 || !is_given) {
      continue;
    }
    for (const program::Shard one : kShards) {
      const bool is_none = one == program::Shard::None;
      const std::string shard(shard_name(one));
      // Optimizers that send little would send most of it to gather weights.
      const bool is_wanted =
          plan.shard == shard || (plan.shard == "auto" && (is_none || !recipe.train.is_one_bit()));
      if (data == 1 ? is_none : is_wanted) {
        layouts.push_back({pipeline, data, shard});
      }
    }
  }
  return layouts;
}

bool is_better(const LayoutPlan& a, const LayoutPlan& b) {
  const bool a_plans = a.why_not.empty(), b_plans = b.why_not.empty();
  if (a_plans != b_plans) {
    return a_plans;
  }
  if (a.is_feasible != b.is_feasible) {
    return a.is_feasible;
  }
  if (!a.is_feasible) {
    return a.peak_bytes < b.peak_bytes;
  }
  return a.step_s < b.step_s;
}

// Among those about as fast as the fastest, the one that holds least comes first.
void put_leanest_first(std::vector<LayoutPlan>& plans) {
  constexpr double kAboutAsFast = 1.01;
  auto best = plans.begin();
  for (auto one = plans.begin(); one != plans.end(); ++one) {
    if (one->is_feasible && one->step_s <= kAboutAsFast * plans.front().step_s &&
        one->peak_bytes < best->peak_bytes) {
      best = one;
    }
  }
  std::rotate(plans.begin(), best, best + 1);
}

}  // namespace

bool leaves_layout_open(const config::PlanOptions& options, int64_t ranks) {
  if (options.is_asynchronous()) {  // the layout is part of the numbers
    return false;
  }
  return leaves_degrees_open(options, ranks) ||
         (options.ranks() == ranks && options.data > 1 && options.shard == "auto");
}

config::Recipe with_layout(config::Recipe recipe, const Layout& layout) {
  recipe.plan.pipeline = layout.pipeline;
  recipe.plan.data = layout.data;
  recipe.plan.shard = layout.shard;
  if (layout.pipeline == 1) {  // said for pipelines
    recipe.plan.schedule = "auto";
    recipe.plan.cuts.clear();
  }
  return recipe;
}

std::vector<LayoutPlan> plan_layouts(const config::Recipe& recipe,
                                     int64_t ranks,
                                     const PlanLayout& plan) {
  std::vector<LayoutPlan> plans;
  for (const Layout& layout : candidates(recipe, ranks)) {
    LayoutPlan& planned = plans.emplace_back();
    planned.layout = layout;
    try {
      const config::Recipe one = with_layout(recipe, layout);
      config::validate(one);
      const Outcome outcome = plan(one);
      planned.is_feasible = outcome.is_feasible;
      planned.step_s = outcome.step_s;
      planned.peak_bytes =
          outcome.is_feasible ? outcome.most_peak_bytes() : outcome.most_least_bytes();
      planned.sent_bytes = outcome.sent_bytes;
    } catch (const ConfigError& error) {
      planned.why_not = error.what();
    }
  }
  if (plans.empty()) {
    throw ConfigError(cat("no layout of ",
                          ranks,
                          " ranks has plan.pipeline = ",
                          recipe.plan.pipeline,
                          " and plan.data = ",
                          recipe.plan.data));
  }
  std::stable_sort(plans.begin(), plans.end(), is_better);
  put_leanest_first(plans);
  return plans;
}

}  // namespace penstock::plan
