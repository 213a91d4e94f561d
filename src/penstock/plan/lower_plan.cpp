#include "penstock/plan/lower_plan.h"

#include <numeric>
#include <vector>

#include "penstock/plan/passes.h"
#include "penstock/plan/rank_holdings.h"
#include "penstock/plan/sharding.h"

namespace penstock::plan {

namespace {

Holdings find_holdings(const Plan& plan, const Pipeline& pipeline, const Ground& ground) {
  if (ground.holdings) {
    return *ground.holdings;
  }
  if (ground.model.is_known()) {
    return all_holdings(plan.options, ground.model, pipeline, ground.costs, ground.machine);
  }
  // One rank holds all that the table names; of several each holds its layers' columns.
  return plan.mesh().ranks() == 1 ? Holdings{.ranks = {fixed_holdings(ground.costs.held)}}
                                  : holdings_by_rank(ground.costs, pipeline);
}

}  // namespace

Pipeline pipeline_of(const Plan& plan, const Ground& ground, int32_t updates) {
  Pipeline pipeline{.schedule = plan.schedule(updates),
                    .cuts = plan.cuts(static_cast<int32_t>(ground.costs.layers.size())),
                    .operations = plan.operations,
                    .link = ground.machine.along(plan.mesh(), comm::Axis::Pipeline)};
  for (std::vector<StageOperations>& stage : pipeline.operations) {
    const std::vector<StageOperations> of_update = stage;
    for (int32_t update = 1; update < updates; ++update) {
      stage.insert(stage.end(), of_update.begin(), of_update.end());
    }
  }
  pipeline.weight_bytes = ground.model.is_known()
                              ? copy_bytes_by_stage(ground.model, pipeline, ground.machine)
                              : weight_bytes_by_rank(ground.costs, pipeline);
  return pipeline;
}

program::Program lower_plan(const Plan& plan,
                            const Ground& ground,
                            int32_t updates,
                            int64_t limit_bytes,
                            Spent* spent) {
  const Pipeline pipeline = pipeline_of(plan, ground, updates);
  const Holdings holdings = find_holdings(plan, pipeline, ground);
  std::optional<Sharding> sharding;
  if (plan.options.data > 1) {
    sharding = sharding_of(plan.options, ground.model, pipeline.cuts, ground.machine);
  }
  std::vector<int32_t> all(static_cast<size_t>(plan.mesh().ranks()));
  std::iota(all.begin(), all.end(), 0);
  return run_passes({.costs = ground.costs,
                     .pipeline = pipeline,
                     .holdings = holdings,
                     .sharding = sharding ? &*sharding : nullptr,
                     .link_of_all = ground.machine.among(all),
                     .limit_bytes = limit_bytes},
                    spent);
}

}  // namespace penstock::plan
