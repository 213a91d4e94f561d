#include "penstock/plan/lower_plan.h"

#include <numeric>
#include <utility>
#include <vector>

#include "penstock/plan/passes.h"
#include "penstock/plan/rank_holdings.h"
#include "penstock/plan/sharding.h"

namespace penstock::plan {

namespace {

Holdings find_holdings(const Plan& plan, const Pipeline& pipeline, const Ground& ground) {
  if (ground.model.is_known()) {
    return all_holdings(plan.options, ground.model, pipeline, ground.costs, ground.machine);
  }
  // One rank holds all that the table names; of several each holds its layers' columns.
  return plan.mesh().ranks() == 1 ? Holdings{.ranks = {fixed_holdings(ground.costs.held)}}
                                  : holdings_by_rank(ground.costs, pipeline);
}

// What each rank sends in the optimizer's exchanges; empty: no replicas, or nothing to exchange.
std::vector<ExchangeBytes> find_exchanges(const Plan& plan,
                                          const ModelSizes& model,
                                          const schedule::Schedule& schedule) {
  std::vector<ExchangeBytes> all;
  if (plan.options.data == 1 || !model.exchanges) {
    return all;
  }
  const std::vector<int32_t> cuts = plan.cuts(model.num_layers());
  for (const Inventory& inventory :
       all_inventories(plan.options, model, {.schedule = schedule, .cuts = cuts})) {
    all.push_back(model.exchanges(inventory));
  }
  return all;
}

UpdateLinks links_of(const Machine& machine, const comm::Mesh& mesh) {
  std::vector<int32_t> all(static_cast<size_t>(mesh.ranks()));
  std::iota(all.begin(), all.end(), 0);
  return {.of_all = machine.among(all), .of_replicas = machine.along(mesh, comm::Axis::Data)};
}

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

}  // namespace

program::Program lower_plan(
    const Plan& plan, const Ground& ground, int32_t updates, int64_t limit_bytes, Spent* spent) {
  const Pipeline pipeline = pipeline_of(plan, ground, updates);
  const Holdings holdings = find_holdings(plan, pipeline, ground);
  std::optional<Sharding> sharding;
  if (plan.options.data > 1) {
    sharding = sharding_of(plan.options, ground.model, pipeline.cuts, ground.machine);
  }
  return run_passes({.costs = ground.costs,
                     .pipeline = pipeline,
                     .holdings = holdings,
                     .sharding = sharding ? &*sharding : nullptr,
                     .links = links_of(ground.machine, plan.mesh()),
                     .limit_bytes = limit_bytes,
                     .form = ground.model.first_form,
                     .exchanges = find_exchanges(plan, ground.model, pipeline.schedule)},
                    spent);
}

program::Program with_form(program::Program program,
                           const Plan& plan,
                           const ModelSizes& model,
                           const Machine& machine,
                           const UpdateForm& form) {
  return write_exchanges(std::move(program),
                         form,
                         find_exchanges(plan, model, plan.schedule(1)),
                         links_of(machine, plan.mesh()));
}

}  // namespace penstock::plan
