#include "penstock/model/units.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "penstock/base/error.h"
#include "penstock/model/parameters.h"

namespace penstock::model {

namespace {

const std::vector<ParameterSpec>& specs_of(const Chain& chain, int64_t layer) {
  return layer == chain.size() ? chain.loss().parameters() : chain.layer(layer).parameters();
}

const std::string& name_of(const Chain& chain, int64_t layer) {
  return layer == chain.size() ? chain.loss().name() : chain.layer(layer).name();
}

// By name: the layers that use a parameter.
std::map<std::string, std::vector<int32_t>> users_of(const Chain& chain) {
  std::map<std::string, std::vector<int32_t>> users;
  for (int32_t layer = 0; layer <= chain.size(); ++layer) {
    for (const ParameterSpec& spec : specs_of(chain, layer)) {
      users[spec.name].push_back(layer);
    }
  }
  return users;
}

plan::ParameterSize size_of(const ParameterSpec& spec) {
  return {spec.name, spec.count(), Parameters::flat_elements({spec}), spec.is_always_float32};
}

program::Unit unit_of(const std::string& name) {
  program::Unit unit;
  unit.name = name;
  return unit;
}

}  // namespace

std::vector<plan::UnitSize> make_units(const Chain& chain,
                                       const std::vector<int32_t>& cuts,
                                       int64_t least_bytes) {
  const std::map<std::string, std::vector<int32_t>> users = users_of(chain);
  std::vector<plan::UnitSize> units, shared;
  std::set<std::string> seen;
  bool is_open = false;
  int64_t bytes = 0;
  for (int32_t layer = 0; layer <= chain.size(); ++layer) {
    const bool begins_stage =
        layer < chain.size() && std::find(cuts.begin(), cuts.end(), layer) != cuts.end();
    is_open = is_open && !begins_stage && bytes < least_bytes;
    for (const ParameterSpec& spec : specs_of(chain, layer)) {
      if (!seen.insert(spec.name).second) {
        continue;
      }
      if (const std::vector<int32_t>& layers = users.at(spec.name); layers.size() > 1) {
        plan::UnitSize& unit =
            shared.emplace_back(plan::UnitSize{unit_of(spec.name), {size_of(spec)}});
        unit.unit.layers = layers;
        unit.unit.is_shared = true;
        continue;
      }
      if (!is_open) {
        units.push_back({unit_of(name_of(chain, layer)), {}});
        is_open = true;
        bytes = 0;
      }
      plan::UnitSize& unit = units.back();
      if (unit.unit.layers.empty() || unit.unit.layers.back() != layer) {
        unit.unit.layers.push_back(layer);
      }
      unit.parameters.push_back(size_of(spec));
      bytes += 4 * spec.count();
    }
  }
  for (plan::UnitSize& unit : units) {
    std::stable_partition(unit.parameters.begin(),
                          unit.parameters.end(),
                          [](const plan::ParameterSize& size) { return !size.is_always_float32; });
    if (unit.unit.layers.size() > 1) {
      unit.unit.name = cat(unit.unit.name, " to ", name_of(chain, unit.unit.layers.back()));
    }
  }
  units.insert(units.end(), shared.begin(), shared.end());
  for (plan::UnitSize& unit : units) {
    std::copy_if(unit.unit.layers.begin(),
                 unit.unit.layers.end(),
                 std::back_inserter(unit.unit.forward_only),
                 [&](int32_t layer) {
                   return layer < chain.size() && !chain.layer(layer).backward_needs_weights();
                 });
    for (const plan::ParameterSize& parameter : unit.parameters) {
      unit.unit.elements += parameter.flat;
    }
  }
  return units;
}

std::vector<plan::UnitSize> make_units(const Chain& chain) {
  return make_units(chain, {0, static_cast<int32_t>(chain.size())}, /*least_bytes=*/0);
}

plan::Inventory take_inventory(const Chain& chain,
                               const Part& part,
                               bool compute_is_float32,
                               bool keeps_shares,
                               const Replication& replication) {
  plan::RankPlace place{.layers = {part.layers.begin(), part.layers.end()},
                        .shard = replication.shard,
                        .replicas = replication.replicas,
                        .replica = replication.replica,
                        .compute_is_float32 = compute_is_float32,
                        .keeps_shares = keeps_shares};
  if (part.has_loss) {
    place.layers.push_back(static_cast<int32_t>(chain.size()));
  }
  return plan::take_inventory(replication.units.empty() ? make_units(chain) : replication.units,
                              place);
}

}  // namespace penstock::model
