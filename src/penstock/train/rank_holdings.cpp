#include "penstock/train/rank_holdings.h"

#include <ATen/ATen.h>

#include "penstock/optim/optimizer_size.h"
#include "penstock/optim/update_form.h"
#include "penstock/plan/plan.h"
#include "penstock/plan/sharding.h"
#include "penstock/train/machine.h"
#include "penstock/train/setup.h"

namespace penstock::train {

namespace {

int64_t compute_bytes(const config::Recipe& recipe) {
  return static_cast<int64_t>(c10::elementSize(compute_type(recipe.train)));
}

}  // namespace

plan::ModelSizes model_sizes(const config::Recipe& recipe, const model::Chain& chain) {
  return {
      .layers = model::layer_sizes(chain),
      .compute_bytes = compute_bytes(recipe),
      .keeps_shares = recipe.run.device != "cuda",  // a GPU adds to one gradient
      .optimizer =
          [train = recipe.train](const plan::Inventory& inventory) {
            return optim::optimizer_size(train, inventory);
          },
      .first_form = optim::update_form(
          recipe.train, plan::shard_of(recipe.plan), static_cast<int32_t>(recipe.plan.data), {}),
      .exchanges = optim::exchange_bytes};
}

model::Replication replication_of(const config::Recipe& recipe,
                                  const model::Chain& chain,
                                  const std::vector<int32_t>& cuts,
                                  int32_t replica) {
  return {.shard = plan::shard_of(recipe.plan),
          .replicas = static_cast<int32_t>(recipe.plan.data),
          .replica = replica,
          .units = plan::units_of(recipe.plan, model_sizes(recipe, chain), cuts)};
}

plan::Holdings holdings_alone(const config::Recipe& recipe,
                              const model::Parameters& parameters,
                              int64_t held_bytes) {
  const plan::Inventory& inventory = parameters.inventory();
  plan::OptimizerSize optimizer = optim::optimizer_size(recipe.train, inventory);
  if (parameters.device().is_gpu()) {
    optimizer.workspaces.clear();  // among what is held beside
  }
  plan::RankHoldings rank = plan::holdings_of(inventory, optimizer, compute_bytes(recipe));
  if (const int64_t other = held_bytes - rank.bytes(); other > 0) {
    rank.values.push_back(plan::fixed_value("other", other));
  }
  if (parameters.device().is_gpu() && recipe.plan.memory_bytes() > 0) {
    rank.values.push_back(plan::fixed_value("allocator pages", allocator_page_bytes()));
  }
  plan::Holdings holdings{.num_parameters = static_cast<int64_t>(parameters.all().size())};
  for (const plan::UnitSize& unit : inventory.sizes) {
    holdings.units.push_back(unit.unit);
  }
  holdings.ranks.push_back(std::move(rank));
  return holdings;
}

run::ReplicaOptions replica_options(const config::Recipe& recipe,
                                    const model::Chain& chain,
                                    const plan::Machine& machine) {
  return {.mesh = plan::mesh_of(recipe.plan),
          .algorithm = plan::collective_algorithm(recipe.plan, machine),
          .reduced = plan::reduces_narrow(recipe.plan, model_sizes(recipe, chain))
                         ? comm::Element::BFloat16
                         : comm::Element::Float32};
}

}  // namespace penstock::train
