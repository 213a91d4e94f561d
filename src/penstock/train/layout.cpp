#include "penstock/train/layout.h"

#include <algorithm>
#include <array>
#include <map>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/report/layout_text.h"
#include "penstock/train/machine.h"
#include "penstock/train/planning.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/ranks.h"
#include "penstock/train/setup.h"

namespace penstock::train {

using program::kShards;

std::vector<plan::LayoutPlan> plan_layouts(const config::Recipe& recipe,
                                           const model::Chain& chain,
                                           const device::Device& device,
                                           int64_t ranks,
                                           const plan::Machine& machine) {
  std::map<int64_t, plan::CostTable> costs;  // by replicas: those decide what a micro-batch is
  return plan::plan_layouts(recipe, ranks, [&](const config::Recipe& one) {
    auto known = costs.find(one.plan.data);
    if (known == costs.end()) {
      known = costs.emplace(one.plan.data, find_pipeline_costs(one, chain, device)).first;
    }
    return plan::make_plan(plan_request(one, chain), known->second, machine);
  });
}

config::Recipe choose_layout(const config::Recipe& recipe,
                             comm::Group& group,
                             const Subject& subject) {
  std::array<int64_t, 3> chosen = {};
  const PatientScope patience(group);
  const plan::Machine machine = probe_machine(recipe, group);
  if (group.rank() == 0) {
    const device::Device device = open_device(recipe, group);
    const model::Chain chain = subject.make_chain(recipe, device);
    const std::vector<plan::LayoutPlan> plans =
        plan_layouts(recipe, chain, device, group.size(), machine);
    if (!plans.front().why_not.empty()) {
      throw ConfigError(report::no_layout_fits(layout_rows(plans), recipe.plan.memory_bytes()));
    }
    if (!plans.front().is_feasible) {
      throw Error(ExitCode::Negative,
                  report::no_layout_fits(layout_rows(plans), recipe.plan.memory_bytes()));
    }
    log_info("layout: ", report::layout_line(layout_rows(plans)));
    const plan::Layout& best = plans.front().layout;
    const auto shard = std::find_if(kShards.begin(), kShards.end(), [&](program::Shard one) {
      return shard_name(one) == best.shard;
    });
    chosen = {best.pipeline, best.data, shard - kShards.begin()};
  }
  group.broadcast(
      0, chosen.data(), sizeof chosen, [] { return std::string("the layout of ranks"); });
  config::Recipe settled = plan::with_layout(
      recipe,
      {chosen[0], chosen[1], std::string(shard_name(kShards[static_cast<size_t>(chosen[2])]))});
  config::validate(settled);
  return settled;
}

PlannedRanks plan_ranks(const config::Recipe& asked,
                        int64_t ranks,
                        const plan::RotorOptions& rotor,
                        const Subject& subject) {
  const device::Device device = open_device(asked);
  const model::Chain chain = subject.make_chain(asked, device);
  PlannedRanks planned{.recipe = asked, .machine = probe_machine(asked, ranks)};
  config::Recipe& recipe = planned.recipe;
  if (plan::leaves_layout_open(recipe.plan, ranks)) {
    const std::vector<plan::LayoutPlan> layouts =
        plan_layouts(recipe, chain, device, ranks, planned.machine);
    planned.layouts = layout_rows(layouts);
    if (!layouts.front().why_not.empty()) {
      throw ConfigError(report::no_layout_fits(planned.layouts, recipe.plan.memory_bytes()));
    }
    recipe = plan::with_layout(recipe, layouts.front().layout);
  } else {
    require_ranks(recipe.plan, ranks, "--ranks says");
  }
  Planned found = find_plan(recipe,
                            chain,
                            device,
                            planned.machine,
                            {.predicts = true, .rotor = rotor, .proves = recipe.plan.ranks() == 1});
  planned.costs = std::move(found.costs);
  planned.result = std::move(found.result);
  return planned;
}

std::vector<report::LayoutRow> layout_rows(const std::vector<plan::LayoutPlan>& plans) {
  std::vector<report::LayoutRow> rows;
  for (const plan::LayoutPlan& one : plans) {
    rows.push_back({.pipeline = one.layout.pipeline,
                    .data = one.layout.data,
                    .shard = one.layout.shard,
                    .is_feasible = one.is_feasible,
                    .step_s = one.step_s,
                    .peak_bytes = one.peak_bytes,
                    .sent_bytes = one.sent_bytes,
                    .why_not = one.why_not});
  }
  return rows;
}

}  // namespace penstock::train
