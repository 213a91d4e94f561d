#include "penstock/train/rank_holdings.h"

#include <ATen/ATen.h>

#include "penstock/optim/gpu_optimizer_size.h"
#include "penstock/optim/optimizer_size.h"
#include "penstock/optim/update_form.h"
#include "penstock/plan/plan.h"
#include "penstock/plan/sharding.h"
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
      .optimizer = [train = recipe.train,
                    size = recipe.run.device == "cuda" ? optim::gpu_optimizer_size
                                                       : optim::optimizer_size](
                       const plan::Inventory& inventory) { return size(train, inventory); },
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
