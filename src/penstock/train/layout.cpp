#include "penstock/train/layout.h"

#include <algorithm>
#include <array>
#include <map>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/comm/collectives.h"
#include "penstock/report/layout_text.h"
#include "penstock/train/rank_holdings.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/setup.h"

namespace penstock::train {

using program::kShards;

namespace {

bool leaves_degrees_open(const config::PlanOptions& plan, int64_t ranks) {
  if (ranks <= 1 || plan.ranks() == ranks) {
    return false;
  }
  const bool has_pipeline = plan.pipeline > 1;
  const bool has_data = plan.data > 1;
  return (!has_pipeline && !has_data) ||
         (has_pipeline && !has_data && ranks % plan.pipeline == 0) ||
         (has_data && !has_pipeline && ranks % plan.data == 0);
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

bool leaves_layout_open(const config::PlanOptions& plan, int64_t ranks) {
  if (plan.is_asynchronous()) {  // the layout is part of the numbers
    return false;
  }
  return leaves_degrees_open(plan, ranks) ||
         (plan.ranks() == ranks && plan.data > 1 && plan.shard == "auto");
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
                                     const model::Chain& chain,
                                     const device::Device& device,
                                     int64_t ranks,
                                     const plan::LinkCost& line) {
  std::vector<LayoutPlan> plans;
  std::map<int64_t, plan::CostTable> costs;  // by replicas: those decide what a micro-batch is
  for (const Layout& layout : candidates(recipe, ranks)) {
    LayoutPlan& planned = plans.emplace_back();
    planned.layout = layout;
    try {
      const config::Recipe one = with_layout(recipe, layout);
      config::validate(one);
      auto known = costs.find(layout.data);
      if (known == costs.end()) {
        known = costs.emplace(layout.data, find_pipeline_costs(one, chain, device)).first;
      }
      const plan::PipelineResult result = plan_pipeline(one, chain, known->second, line);
      planned.is_feasible = result.is_feasible;
      planned.step_s = result.step_s;
      const std::vector<int64_t>& bytes =
          result.is_feasible ? result.peak_bytes : result.least_bytes;
      planned.peak_bytes = *std::max_element(bytes.begin(), bytes.end());
      planned.sent_bytes = result.sent_bytes;
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

plan::LinkCost probe_line(comm::Group& group) {
  if (group.size() == 1) {
    return {};
  }
  constexpr int64_t kSmall = int64_t{1} << 10;
  constexpr int64_t kLarge = int64_t{4} << 20;
  constexpr int kTimes = 5;
  std::vector<std::byte> staging(comm::Collectives::kStaging);
  std::vector<std::byte> data(kLarge);
  comm::Collectives collectives(group, /*channel=*/0, staging);
  const comm::What what = [] { return std::string("the speed of the line between ranks"); };
  const auto time = [&](int64_t bytes) {
    std::vector<double> seconds;
    for (int i = 0; i < kTimes; ++i) {
      group.barrier(what);
      const double began = now_seconds();
      collectives.all_gather(
          data.data(), comm::even_cuts(bytes, group.size()), comm::Algorithm::Direct, what);
      seconds.push_back(now_seconds() - began);
    }
    std::nth_element(seconds.begin(), seconds.begin() + kTimes / 2, seconds.end());
    return seconds[kTimes / 2];
  };
  std::array<double, 2> found = {time(kSmall), time(kLarge)};
  group.broadcast(0, found.data(), sizeof found, what);
  const double sent =
      static_cast<double>(kLarge) * (group.size() - 1) / static_cast<double>(group.size());
  return {.latency_s = found[0], .bytes_per_s = sent / std::max(1e-9, found[1] - found[0])};
}

config::Recipe choose_layout(const config::Recipe& recipe, comm::Group& group) {
  const plan::LinkCost line = probe_line(group);
  std::array<int64_t, 3> chosen = {};
  const PatientScope patience(group);
  if (group.rank() == 0) {
    const device::Device device = open_device(recipe, group);
    const model::Chain chain = make_chain(recipe.model, device);
    const std::vector<LayoutPlan> plans = plan_layouts(recipe, chain, device, group.size(), line);
    if (!plans.front().why_not.empty()) {
      throw ConfigError(report::no_layout_fits(layout_rows(plans), recipe.plan.memory_bytes()));
    }
    if (!plans.front().is_feasible) {
      throw Error(ExitCode::Negative,
                  report::no_layout_fits(layout_rows(plans), recipe.plan.memory_bytes()));
    }
    log_info("layout: ", report::layout_line(layout_rows(plans)));
    const Layout& best = plans.front().layout;
    const auto shard = std::find_if(kShards.begin(), kShards.end(), [&](program::Shard one) {
      return shard_name(one) == best.shard;
    });
    chosen = {best.pipeline, best.data, shard - kShards.begin()};
  }
  group.broadcast(
      0, chosen.data(), sizeof chosen, [] { return std::string("the layout of ranks"); });
  config::Recipe settled = with_layout(
      recipe,
      {chosen[0], chosen[1], std::string(shard_name(kShards[static_cast<size_t>(chosen[2])]))});
  config::validate(settled);
  return settled;
}

std::vector<report::LayoutRow> layout_rows(const std::vector<LayoutPlan>& plans) {
  std::vector<report::LayoutRow> rows;
  for (const LayoutPlan& one : plans) {
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
