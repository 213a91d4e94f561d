#include "penstock/train/rank_residents.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/memory/gpu_account.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/onebit_bytes.h"
#include "penstock/plan/link_costs.h"
#include "penstock/run/stages.h"
#include "penstock/train/planning.h"
#include "penstock/train/setup.h"

namespace penstock::train {

namespace {

program::Shard shard_of(const config::Recipe& recipe) {
  if (recipe.plan.data == 1) {
    return program::Shard::None;
  }
  for (const program::Shard shard : program::kShards) {
    if (program::shard_name(shard) == recipe.plan.shard) {
      return shard;
    }
  }
  throw InternalError(cat("no shard ", recipe.plan.shard));
}

std::vector<model::UnitSpec> make_units(const config::Recipe& recipe,
                                        const model::Chain& chain,
                                        const std::vector<int32_t>& cuts) {
  const program::Shard shard = shard_of(recipe);
  const bool has_buckets = shard == program::Shard::None || shard == program::Shard::Optimizer;
  return model::make_units(chain, cuts, has_buckets ? recipe.plan.bucket_bytes() : 0);
}

// Whether gradients go between replicas in bfloat16.
bool is_narrow(const config::Recipe& recipe) {
  return recipe.plan.reduce == "compute" && compute_type(recipe.train) == at::kBFloat16;
}

int64_t optimizer_copies(const config::TrainOptions& train) {
  return train.optimizer == "sgd" ? (train.momentum > 0 ? 1 : 0) : 2;
}

// None for other optimizers.
optim::OneBitBytes one_bit_bytes(const config::TrainOptions& train,
                                 const model::Chain& chain,
                                 const model::Part& part,
                                 const model::RankElements& counts,
                                 const model::Replication& replication) {
  if (!train.is_one_bit()) {
    return {};
  }
  optim::OneBitElements elements{
      .whole = counts.gradients, .state = counts.state, .replicas = replication.replicas};
  for (const model::ParameterSpec& spec : chain.parameters(part)) {
    elements.parameters.push_back(spec.count());
  }
  return optim::onebit_bytes(train, elements);
}

std::vector<program::Resident> gpu_residents(const config::Recipe& recipe,
                                             std::vector<program::Resident> residents,
                                             const plan::CostTable& costs) {
  for (program::Resident& resident : residents) {
    resident.bytes = memory::gpu_block_bytes(resident.bytes);
  }
  for (const program::Resident& resident : costs.residents) {
    if (resident.name == kWorkspacesName) {
      residents.push_back(resident);
    }
  }
  if (recipe.plan.memory_bytes() > 0) {
    residents.push_back(allocator_pages());
  }
  return residents;
}

// Of a rank without replicas.
model::RankElements count_alone(const model::Chain& chain,
                                const model::Part& part,
                                bool compute_is_float32) {
  const int64_t elements = model::Parameters::flat_elements(chain.parameters(part));
  model::RankElements counts{.weights = elements,
                             .compute = compute_is_float32 ? 0 : elements,
                             .gradients = elements,
                             .state = elements};
  std::set<std::string> seen;
  const auto count_shared = [&](const std::vector<model::ParameterSpec>& layer) {
    for (const model::ParameterSpec& spec : layer) {
      counts.shared_gradients += seen.insert(spec.name).second ? 0 : spec.count();
    }
  };
  for (const int64_t layer : part.layers) {
    count_shared(chain.layer(layer).parameters());
  }
  if (part.has_loss) {
    count_shared(chain.loss().parameters());
  }
  return counts;
}

}  // namespace

model::Replication replication_of(const config::Recipe& recipe,
                                  const model::Chain& chain,
                                  const std::vector<int32_t>& cuts,
                                  int32_t replica) {
  if (recipe.plan.data == 1) {
    return {};
  }
  return {.shard = shard_of(recipe),
          .replicas = static_cast<int32_t>(recipe.plan.data),
          .replica = replica,
          .units = make_units(recipe, chain, cuts)};
}

std::vector<program::Resident> residents_of(const config::Recipe& recipe,
                                            const model::Chain& chain,
                                            const model::Part& part,
                                            const plan::CostTable& costs,
                                            const model::Replication& replication) {
  const at::ScalarType type = compute_type(recipe.train);
  const bool is_float32 = type == at::kFloat;
  const model::RankElements counts =
      replication.replicas == 1 ? count_alone(chain, part, is_float32)
                                : model::count_elements(chain, part, is_float32, replication);
  std::vector<program::Resident> residents{{"weights", 4 * counts.weights},
                                           {"gradients", 4 * counts.gradients}};
  if (!is_float32) {
    residents.push_back(
        {"compute copy", static_cast<int64_t>(c10::elementSize(type)) * counts.compute});
  }
  const optim::OneBitBytes one_bit = one_bit_bytes(recipe.train, chain, part, counts, replication);
  const int64_t copies = 4 * counts.state * optimizer_copies(recipe.train);
  residents.push_back({"optimizer state", recipe.train.is_one_bit() ? one_bit.state : copies});
  if (recipe.run.device == "cuda") {
    return gpu_residents(recipe, std::move(residents), costs);
  }
  const auto add = [&](const char* name, int64_t bytes) {
    if (bytes > 0) {
      residents.push_back({name, bytes});
    }
  };
  add("float32 weights", 4 * counts.whole_float32);
  add("gradients of shared weights", 4 * counts.shared_gradients);
  if (recipe.train.optimizer == "lamb") {
    int64_t largest = 0;
    for (const model::ParameterSpec& spec : chain.parameters(part)) {
      largest = std::max(largest, spec.count());
    }
    add("update", 4 * (replication.shard == program::Shard::None ? largest : counts.state));
  }
  add("sending of signs", one_bit.working);
  add("staging of collectives", replication.replicas > 1 ? run::Replicas::working_bytes() : 0);
  return residents;
}

namespace {

plan::Residents all_residents(const config::Recipe& recipe,
                              const model::Chain& chain,
                              const plan::Pipeline& pipeline,
                              const plan::CostTable& costs) {
  plan::Residents all;
  model::Replication replication = replication_of(recipe, chain, pipeline.cuts, 0);
  const int32_t stages = pipeline.schedule.ranks();
  for (const model::Part& part :
       run::parts_of({pipeline.schedule.rank_of, pipeline.cuts}, stages)) {
    for (int32_t replica = 0; replica < replication.replicas; ++replica) {
      replication.replica = replica;
      all.push_back(residents_of(recipe, chain, part, costs, replication));
    }
  }
  return all;
}

}  // namespace

plan::Residents stage_residents(const config::Recipe& recipe,
                                const model::Chain& chain,
                                const plan::Pipeline& pipeline,
                                const plan::CostTable& costs) {
  const plan::Residents all = all_residents(recipe, chain, pipeline, costs);
  plan::Residents most;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (rank % static_cast<size_t>(recipe.plan.data) == 0) {
      most.push_back(all[rank]);
    } else if (program::bytes_of(all[rank]) > program::bytes_of(most.back())) {
      most.back() = all[rank];
    }
  }
  return most;
}

plan::Sharding units_of(const config::Recipe& recipe,
                        const model::Chain& chain,
                        const std::vector<int32_t>& cuts) {
  const int64_t compute_bytes = static_cast<int64_t>(c10::elementSize(compute_type(recipe.train)));
  plan::Sharding sharding{.replicas = static_cast<int32_t>(recipe.plan.data),
                          .shard = shard_of(recipe),
                          .keeps_gathered = recipe.plan.keep_gathered};
  for (const model::UnitSpec& unit : make_units(recipe, chain, cuts)) {
    const model::UnitLayout layout =
        model::lay_out(unit, compute_bytes == 4, static_cast<int32_t>(recipe.plan.data));
    plan::UnitCost cost{.unit = {unit.name,
                                 {unit.layers.begin(), unit.layers.end()},
                                 {unit.forward_only.begin(), unit.forward_only.end()}},
                        .bucket_bytes = 4 * layout.elements,
                        .reduced_bytes = (is_narrow(recipe) ? 2 : 4) * layout.elements};
    for (const model::UnitRange& range : layout.ranges) {
      cost.gathered_bytes += range.count * (range.is_float32 ? 4 : compute_bytes);
    }
    sharding.units.push_back(std::move(cost));
  }
  return sharding;
}

namespace {

// By plan.links, or by what a plain message takes: a replica sends all but its own piece, and whole
// gradients go out and come back.
void set_seconds(const config::Recipe& recipe,
                 const plan::LinkCost& line,
                 plan::Sharding& sharding) {
  const bool is_whole = sharding.shard == program::Shard::None;
  if (!recipe.plan.links.empty()) {
    const plan::LinkCosts costs = plan::load_links(recipe.plan.links);
    for (plan::UnitCost& unit : sharding.units) {
      const auto algorithm = [&](int64_t bytes) {
        return recipe.plan.collectives == "auto" ? costs.best_algorithm(sharding.replicas, bytes)
                                                 : *comm::parse_algorithm(recipe.plan.collectives);
      };
      const comm::Algorithm gather = algorithm(unit.gathered_bytes);
      const comm::Algorithm reduce = algorithm(unit.reduced_bytes);
      unit.gather_s = costs.all_gather_s(gather, sharding.replicas, unit.gathered_bytes);
      unit.reduce_s = is_whole
                          ? costs.all_reduce_s(reduce, sharding.replicas, unit.reduced_bytes)
                          : costs.reduce_scatter_s(reduce, sharding.replicas, unit.reduced_bytes);
    }
    return;
  }
  const double share = static_cast<double>(sharding.replicas - 1) / sharding.replicas;
  const auto seconds = [&](int64_t bytes) {
    return line.seconds(static_cast<int64_t>(static_cast<double>(bytes) * share));
  };
  for (plan::UnitCost& unit : sharding.units) {
    unit.gather_s = seconds(unit.gathered_bytes);
    unit.reduce_s = (is_whole ? 2 : 1) * seconds(unit.reduced_bytes);
  }
}

}  // namespace

plan::Sharding sharding_of(const config::Recipe& recipe,
                           const model::Chain& chain,
                           const plan::Pipeline& pipeline,
                           const plan::CostTable& costs) {
  plan::Sharding sharding = units_of(recipe, chain, pipeline.cuts);
  sharding.residents = all_residents(recipe, chain, pipeline, costs);
  set_seconds(recipe, pipeline.link, sharding);
  return sharding;
}

namespace {

std::function<comm::Algorithm(int64_t)> choose_algorithm(const config::PlanOptions& plan,
                                                         const comm::Group& group) {
  if (plan.collectives != "auto") {
    return [algorithm = *comm::parse_algorithm(plan.collectives)](int64_t) { return algorithm; };
  }
  if (!plan.links.empty()) {
    return [costs = plan::load_links(plan.links), size = static_cast<int32_t>(plan.data)](
               int64_t bytes) { return costs.best_algorithm(size, bytes); };
  }
  const comm::Algorithm usual =
      group.shares_memory() ? comm::Algorithm::Direct : comm::Algorithm::Own;
  return [usual](int64_t) { return usual; };
}

}  // namespace

run::ReplicaOptions replica_options(const config::Recipe& recipe, const comm::Group& group) {
  return {.replicas = static_cast<int32_t>(recipe.plan.data),
          .algorithm = choose_algorithm(recipe.plan, group),
          .reduced = is_narrow(recipe) ? comm::Element::BFloat16 : comm::Element::Float32};
}

}  // namespace penstock::train
