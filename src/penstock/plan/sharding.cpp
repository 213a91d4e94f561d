#include "penstock/plan/sharding.h"

#include "penstock/comm/collective_traffic.h"
#include "penstock/plan/plan.h"

namespace penstock::plan {

bool reduces_narrow(const config::PlanOptions& options, const ModelSizes& model) {
  return options.reduce == "compute" && model.compute_bytes == 2;
}

std::vector<UnitSize> units_of(const config::PlanOptions& options,
                               const ModelSizes& model,
                               const std::vector<int32_t>& cuts) {
  const program::Shard shard = shard_of(options);
  const bool has_buckets =
      options.data > 1 && (shard == program::Shard::None || shard == program::Shard::Optimizer);
  return make_units(model.layers, cuts, has_buckets ? options.bucket_bytes() : 0);
}

std::function<comm::Algorithm(int64_t)> collective_algorithm(const config::PlanOptions& options,
                                                             const Machine& machine) {
  if (options.collectives != "auto") {
    return [algorithm = *comm::parse_algorithm(options.collectives)](int64_t) { return algorithm; };
  }
  if (machine.collectives) {
    return [costs = *machine.collectives, size = static_cast<int32_t>(options.data)](
               int64_t bytes) { return costs.best_algorithm(size, bytes); };
  }
  // Threads share memory: each reads the others' slices where they lie.
  const comm::Algorithm usual =
      machine.ranks_are_threads ? comm::Algorithm::Direct : comm::Algorithm::Own;
  return [usual](int64_t) { return usual; };
}

namespace {

// What each replica sends of a unit, in a gather and in a reduce.
void set_sent_bytes(const UnitLayout& layout,
                    int64_t compute_bytes,
                    const Sharding& sharding,
                    comm::Element element,
                    const std::function<comm::Algorithm(int64_t)>& algorithm,
                    UnitCost& cost) {
  const int64_t reduced = comm::element_bytes(element);
  for (int32_t replica = 0; replica < sharding.replicas; ++replica) {
    int64_t gathered = 0, added = 0;
    for (const UnitRange& range : layout.ranges) {
      std::vector<int64_t> byte_cuts;
      for (const int64_t cut : range.cuts) {
        byte_cuts.push_back(cut * (range.is_float32 ? 4 : compute_bytes));
      }
      gathered += comm::all_gather_traffic(algorithm(byte_cuts.back()), replica, byte_cuts).bytes;
      added += comm::reduce_scatter_traffic(
                   algorithm(reduced * range.count), replica, range.cuts, element)
                   .bytes;
    }
    if (sharding.shard == program::Shard::None) {
      added = comm::all_reduce_traffic(algorithm(reduced * layout.elements),
                                       replica,
                                       sharding.replicas,
                                       layout.elements,
                                       element)
                  .bytes;
    }
    cost.gather_sent.push_back(gathered);
    cost.reduce_sent.push_back(added);
  }
}

// By collectives that were measured.
void set_measured_seconds(const LinkCosts& costs,
                          const std::function<comm::Algorithm(int64_t)>& algorithm,
                          Sharding& sharding) {
  for (UnitCost& unit : sharding.units) {
    const comm::Algorithm gather = algorithm(unit.gathered_bytes);
    const comm::Algorithm reduce = algorithm(unit.reduced_bytes);
    unit.gather_s = costs.all_gather_s(gather, sharding.replicas, unit.gathered_bytes);
    unit.reduce_s = sharding.shard == program::Shard::None
                        ? costs.all_reduce_s(reduce, sharding.replicas, unit.reduced_bytes)
                        : costs.reduce_scatter_s(reduce, sharding.replicas, unit.reduced_bytes);
  }
}

// By what a plain message takes: a replica sends all but its own slices, and whole gradients go out
// and come back.
void set_plain_seconds(const LinkCost& link, Sharding& sharding) {
  const double share = static_cast<double>(sharding.replicas - 1) / sharding.replicas;
  const auto seconds = [&](int64_t bytes) {
    return link.seconds(static_cast<int64_t>(static_cast<double>(bytes) * share));
  };
  for (UnitCost& unit : sharding.units) {
    unit.gather_s = seconds(unit.gathered_bytes);
    unit.reduce_s = (sharding.shard == program::Shard::None ? 2 : 1) * seconds(unit.reduced_bytes);
  }
}

}  // namespace

Sharding sharding_of(const config::PlanOptions& options,
                     const ModelSizes& model,
                     const std::vector<int32_t>& cuts,
                     const Machine& machine) {
  Sharding sharding{.replicas = static_cast<int32_t>(options.data),
                    .shard = shard_of(options),
                    .keeps_gathered = options.keep_gathered};
  const auto algorithm = collective_algorithm(options, machine);
  const comm::Element element =
      reduces_narrow(options, model) ? comm::Element::BFloat16 : comm::Element::Float32;
  for (const UnitSize& unit : units_of(options, model, cuts)) {
    const UnitLayout layout = lay_out(unit, model.compute_bytes == 4, sharding.replicas);
    UnitCost cost{.unit = unit.unit,
                  .bucket_bytes = 4 * layout.elements,
                  .reduced_bytes = comm::element_bytes(element) * layout.elements};
    for (const UnitRange& range : layout.ranges) {
      cost.gathered_bytes += range.count * (range.is_float32 ? 4 : model.compute_bytes);
    }
    set_sent_bytes(layout, model.compute_bytes, sharding, element, algorithm, cost);
    sharding.units.push_back(std::move(cost));
  }
  if (machine.collectives) {
    set_measured_seconds(*machine.collectives, algorithm, sharding);
  } else {
    set_plain_seconds(machine.along(mesh_of(options), comm::Axis::Data), sharding);
  }
  return sharding;
}

}  // namespace penstock::plan
