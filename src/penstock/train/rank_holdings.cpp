#include "penstock/train/rank_holdings.h"

#include <algorithm>
#include <map>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/comm/collective_traffic.h"
#include "penstock/comm/launcher.h"
#include "penstock/memory/gpu_account.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer_size.h"
#include "penstock/optim/update_form.h"
#include "penstock/plan/link_costs.h"
#include "penstock/run/stages.h"
#include "penstock/train/mesh.h"
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

// Whether gradients go between replicas in bfloat16.
bool is_narrow(const config::Recipe& recipe) {
  return recipe.plan.reduce == "compute" && compute_type(recipe.train) == at::kBFloat16;
}

std::vector<plan::UnitSize> make_units(const config::Recipe& recipe,
                                       const model::Chain& chain,
                                       const std::vector<int32_t>& cuts) {
  const program::Shard shard = shard_of(recipe);
  const bool has_buckets =
      recipe.plan.data > 1 && (shard == program::Shard::None || shard == program::Shard::Optimizer);
  return model::make_units(chain, cuts, has_buckets ? recipe.plan.bucket_bytes() : 0);
}

int64_t compute_bytes(const config::Recipe& recipe) {
  return static_cast<int64_t>(c10::elementSize(compute_type(recipe.train)));
}

// What a GPU's allocator adds: each buffer ends with a block.
int64_t rounding_bytes(const plan::RankHoldings& holdings) {
  std::map<program::ValueKind, int64_t> buffers;
  for (const plan::HeldValue& one : holdings.values) {
    buffers[one.value.kind] += one.value.bytes;
  }
  int64_t sum = 0;
  for (const auto& [kind, bytes] : buffers) {
    sum += memory::gpu_block_bytes(bytes) - bytes;
  }
  return sum;
}

plan::RankHoldings rank_holdings(const config::Recipe& recipe,
                                 const model::Chain& chain,
                                 const model::Part& part,
                                 const plan::CostTable& costs,
                                 const model::Replication& replication) {
  const bool is_gpu = recipe.run.device == "cuda";
  const plan::Inventory inventory = model::take_inventory(chain,
                                                          part,
                                                          compute_type(recipe.train) == at::kFloat,
                                                          /*keeps_shares=*/!is_gpu,
                                                          replication);
  plan::OptimizerSize optimizer = optim::optimizer_size(recipe.train, inventory);
  if (is_gpu) {
    optimizer.workspaces.clear();  // measured with the others
  }
  plan::RankHoldings holdings = plan::holdings_of(inventory, optimizer, compute_bytes(recipe));
  const auto add = [&](const std::string& name, int64_t bytes) {
    if (bytes > 0) {
      holdings.values.push_back(plan::fixed_value(name, bytes));
    }
  };
  if (is_gpu) {
    add("ends of buffers", rounding_bytes(holdings));
    for (const program::Held& held : costs.held) {
      if (held.name == kWorkspacesName) {
        add(held.name, held.bytes);
      }
    }
    add(allocator_pages().name, recipe.plan.memory_bytes() > 0 ? allocator_pages().bytes : 0);
  }
  add("staging of collectives", replication.replicas > 1 ? run::Replicas::working_bytes() : 0);
  return holdings;
}

}  // namespace

model::Replication replication_of(const config::Recipe& recipe,
                                  const model::Chain& chain,
                                  const std::vector<int32_t>& cuts,
                                  int32_t replica) {
  return {.shard = shard_of(recipe),
          .replicas = static_cast<int32_t>(recipe.plan.data),
          .replica = replica,
          .units = make_units(recipe, chain, cuts)};
}

program::Program write_form(program::Program program,
                            const config::Recipe& recipe,
                            const model::Chain& chain,
                            const run::Stages& stages,
                            const plan::LinkCost& line,
                            const plan::UpdateForm& form) {
  const comm::Mesh mesh = program.mesh;
  const std::vector<model::Part> parts = run::parts_of(stages, mesh.pipeline);
  model::Replication replication = replication_of(recipe, chain, stages.cuts, 0);
  std::vector<plan::ExchangeBytes> bytes;
  for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
    replication.replica = mesh.coordinate(rank, comm::Axis::Data);
    const auto stage = static_cast<size_t>(mesh.coordinate(rank, comm::Axis::Pipeline));
    bytes.push_back(
        optim::exchange_bytes(model::take_inventory(chain,
                                                    parts[stage],
                                                    compute_type(recipe.train) == at::kFloat,
                                                    /*keeps_shares=*/true,
                                                    replication)));
  }
  return plan::write_exchanges(std::move(program), form, bytes, line);
}

plan::UpdateForm first_form(const config::Recipe& recipe) {
  return optim::update_form(
      recipe.train, shard_of(recipe), static_cast<int32_t>(recipe.plan.data), {});
}

plan::Holdings all_holdings(const config::Recipe& recipe,
                            const model::Chain& chain,
                            const plan::Pipeline& pipeline,
                            const plan::CostTable& costs) {
  const comm::Mesh mesh = mesh_of(recipe.plan);
  const std::vector<model::Part> parts =
      run::parts_of({pipeline.schedule.rank_of, pipeline.cuts}, mesh.pipeline);
  model::Replication replication = replication_of(recipe, chain, pipeline.cuts, 0);
  plan::Holdings all{.num_parameters = static_cast<int64_t>(chain.parameters().size())};
  for (const plan::UnitSize& unit : replication.units) {
    all.units.push_back(unit.unit);
  }
  for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
    replication.replica = mesh.coordinate(rank, comm::Axis::Data);
    const auto stage = static_cast<size_t>(mesh.coordinate(rank, comm::Axis::Pipeline));
    all.ranks.push_back(rank_holdings(recipe, chain, parts[stage], costs, replication));
  }
  return all;
}

plan::Holdings whole_holdings(const config::Recipe& recipe, const model::Chain& chain) {
  config::Recipe alone = recipe;
  alone.plan.pipeline = alone.plan.data = 1;
  return all_holdings(alone,
                      chain,
                      {.schedule = {.rank_of = {0}, .turns = {{}}},
                       .cuts = {0, static_cast<int32_t>(chain.size())}},
                      /*costs=*/{});
}

plan::Holdings stage_holdings(const config::Recipe& recipe,
                              const model::Chain& chain,
                              const plan::Pipeline& pipeline,
                              const plan::CostTable& costs) {
  plan::Holdings holdings = all_holdings(recipe, chain, pipeline, costs);
  if (recipe.plan.data == 1) {
    return holdings;
  }
  // Only their sums count here: the program of all replicas is written later.
  const comm::Mesh mesh = mesh_of(recipe.plan);
  std::vector<plan::RankHoldings> most(static_cast<size_t>(mesh.pipeline));
  for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
    const plan::RankHoldings& one = holdings.ranks[static_cast<size_t>(rank)];
    plan::RankHoldings& stage =
        most[static_cast<size_t>(mesh.coordinate(rank, comm::Axis::Pipeline))];
    if (stage.values.empty() || one.bytes() > stage.bytes()) {
      stage.values = {plan::fixed_value("weights, gradients and state", one.bytes())};
    }
  }
  holdings.ranks = std::move(most);
  holdings.units.clear();
  return holdings;
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
    rank.values.push_back(plan::fixed_value(allocator_pages().name, allocator_pages().bytes));
  }
  plan::Holdings holdings{.num_parameters = static_cast<int64_t>(parameters.all().size())};
  for (const plan::UnitSize& unit : inventory.sizes) {
    holdings.units.push_back(unit.unit);
  }
  holdings.ranks.push_back(std::move(rank));
  return holdings;
}

namespace {

std::function<comm::Algorithm(int64_t)> choose_algorithm(const config::PlanOptions& plan,
                                                         bool are_threads) {
  if (plan.collectives != "auto") {
    return [algorithm = *comm::parse_algorithm(plan.collectives)](int64_t) { return algorithm; };
  }
  if (!plan.links.empty()) {
    return [costs = plan::load_links(plan.links), size = static_cast<int32_t>(plan.data)](
               int64_t bytes) { return costs.best_algorithm(size, bytes); };
  }
  const comm::Algorithm usual = are_threads ? comm::Algorithm::Direct : comm::Algorithm::Own;
  return [usual](int64_t) { return usual; };
}

// What each replica sends of a unit, in a gather and in a reduce.
void set_sent_bytes(const config::Recipe& recipe,
                    const plan::UnitLayout& layout,
                    const std::function<comm::Algorithm(int64_t)>& algorithm,
                    bool scatters,
                    plan::UnitCost& cost) {
  const auto replicas = static_cast<int32_t>(recipe.plan.data);
  const comm::Element element =
      is_narrow(recipe) ? comm::Element::BFloat16 : comm::Element::Float32;
  const int64_t reduced = comm::element_bytes(element);
  for (int32_t replica = 0; replica < replicas; ++replica) {
    int64_t gathered = 0, added = 0;
    for (const plan::UnitRange& range : layout.ranges) {
      std::vector<int64_t> byte_cuts;
      for (const int64_t cut : range.cuts) {
        byte_cuts.push_back(cut * (range.is_float32 ? 4 : compute_bytes(recipe)));
      }
      gathered += comm::all_gather_traffic(algorithm(byte_cuts.back()), replica, byte_cuts).bytes;
      added += comm::reduce_scatter_traffic(
                   algorithm(reduced * range.count), replica, range.cuts, element)
                   .bytes;
    }
    if (!scatters) {
      added = comm::all_reduce_traffic(
                  algorithm(reduced * layout.elements), replica, replicas, layout.elements, element)
                  .bytes;
    }
    cost.gather_sent.push_back(gathered);
    cost.reduce_sent.push_back(added);
  }
}

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
                           const std::vector<int32_t>& cuts,
                           const plan::LinkCost& line) {
  plan::Sharding sharding{.replicas = static_cast<int32_t>(recipe.plan.data),
                          .shard = shard_of(recipe),
                          .keeps_gathered = recipe.plan.keep_gathered};
  const auto algorithm = choose_algorithm(recipe.plan, comm::launched_ranks() <= 1);
  for (const plan::UnitSize& unit : make_units(recipe, chain, cuts)) {
    const plan::UnitLayout layout =
        plan::lay_out(unit, compute_bytes(recipe) == 4, static_cast<int32_t>(recipe.plan.data));
    plan::UnitCost cost{.unit = unit.unit,
                        .bucket_bytes = 4 * layout.elements,
                        .reduced_bytes = (is_narrow(recipe) ? 2 : 4) * layout.elements};
    for (const plan::UnitRange& range : layout.ranges) {
      cost.gathered_bytes += range.count * (range.is_float32 ? 4 : compute_bytes(recipe));
    }
    set_sent_bytes(recipe, layout, algorithm, sharding.shard != program::Shard::None, cost);
    sharding.units.push_back(std::move(cost));
  }
  set_seconds(recipe, line, sharding);
  return sharding;
}

run::ReplicaOptions replica_options(const config::Recipe& recipe, const comm::Group& group) {
  return {.mesh = mesh_of(recipe.plan),
          .algorithm = choose_algorithm(recipe.plan, group.shares_memory()),
          .reduced = is_narrow(recipe) ? comm::Element::BFloat16 : comm::Element::Float32};
}

}  // namespace penstock::train
