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
std::map<std::string, std::vector<int64_t>> users_of(const Chain& chain) {
  std::map<std::string, std::vector<int64_t>> users;
  for (int64_t layer = 0; layer <= chain.size(); ++layer) {
    for (const ParameterSpec& spec : specs_of(chain, layer)) {
      users[spec.name].push_back(layer);
    }
  }
  return users;
}

// Where a piece may begin in a unit, nearest to `ideal`.
int64_t nearest_cut(const std::vector<int64_t>& begins, const UnitRange& range, int64_t ideal) {
  int64_t before = 0;
  int64_t after = range.count;
  for (size_t i = 0; i < begins.size(); ++i) {
    const int64_t begin = begins[i];
    const int64_t end = i + 1 < begins.size() ? begins[i + 1] : range.count;
    if (begin <= ideal && ideal < end) {
      before = begin + (ideal - begin) / kPieceGrain * kPieceGrain;
      after = std::min(before + kPieceGrain, end);
    }
  }
  return ideal - before <= after - ideal ? before : after;
}

void cut(UnitRange& range, const std::vector<int64_t>& begins, int32_t replicas) {
  range.cuts.push_back(0);
  for (int32_t replica = 1; replica < replicas; ++replica) {
    const int64_t ideal = range.count * replica / replicas;
    range.cuts.push_back(std::max(range.cuts.back(), nearest_cut(begins, range, ideal)));
  }
  range.cuts.push_back(range.count);
}

}  // namespace

std::vector<UnitSpec> make_units(const Chain& chain,
                                 const std::vector<int32_t>& cuts,
                                 int64_t least_bytes) {
  const std::map<std::string, std::vector<int64_t>> users = users_of(chain);
  std::vector<UnitSpec> units, shared;
  std::set<std::string> seen;
  bool is_open = false;
  int64_t bytes = 0;
  for (int64_t layer = 0; layer <= chain.size(); ++layer) {
    const bool begins_stage =
        layer < chain.size() && std::find(cuts.begin(), cuts.end(), layer) != cuts.end();
    is_open = is_open && !begins_stage && bytes < least_bytes;
    for (const ParameterSpec& spec : specs_of(chain, layer)) {
      if (!seen.insert(spec.name).second) {
        continue;
      }
      if (const std::vector<int64_t>& layers = users.at(spec.name); layers.size() > 1) {
        shared.push_back({spec.name, layers, {}, {spec}});
        continue;
      }
      if (!is_open) {
        units.push_back({name_of(chain, layer), {}, {}, {}});
        is_open = true;
        bytes = 0;
      }
      UnitSpec& unit = units.back();
      if (unit.layers.empty() || unit.layers.back() != layer) {
        unit.layers.push_back(layer);
      }
      unit.parameters.push_back(spec);
      bytes += 4 * spec.count();
    }
  }
  for (UnitSpec& unit : units) {
    std::stable_partition(unit.parameters.begin(),
                          unit.parameters.end(),
                          [](const ParameterSpec& spec) { return !spec.is_always_float32; });
    if (unit.layers.size() > 1) {
      unit.name = cat(unit.name, " to ", name_of(chain, unit.layers.back()));
    }
  }
  units.insert(units.end(), shared.begin(), shared.end());
  for (UnitSpec& unit : units) {
    std::copy_if(unit.layers.begin(),
                 unit.layers.end(),
                 std::back_inserter(unit.forward_only),
                 [&](int64_t layer) {
                   return layer < chain.size() && !chain.layer(layer).backward_needs_weights();
                 });
  }
  return units;
}

int64_t UnitLayout::piece_count(int32_t replica) const {
  int64_t count = 0;
  for (const UnitRange& range : ranges) {
    count += range.piece_count(replica);
  }
  return count;
}

UnitLayout lay_out(const UnitSpec& unit, bool compute_is_float32, int32_t replicas) {
  UnitLayout layout;
  std::vector<std::vector<int64_t>> begins;  // of parameters, by range
  for (const ParameterSpec& spec : unit.parameters) {
    const bool is_float32 = !compute_is_float32 && spec.is_always_float32;
    if (layout.ranges.empty() || layout.ranges.back().is_float32 != is_float32) {
      layout.ranges.push_back({.first = layout.elements, .is_float32 = is_float32});
      begins.emplace_back();
    }
    UnitRange& range = layout.ranges.back();
    layout.offsets.push_back(layout.elements);
    begins.back().push_back(range.count);
    const int64_t elements = Parameters::flat_elements({spec});
    range.count += elements;
    layout.elements += elements;
  }
  PENSTOCK_CHECK(layout.ranges.size() <= 2,
                 "a unit's parameters are not in the order of their types");
  for (size_t i = 0; i < layout.ranges.size(); ++i) {
    cut(layout.ranges[i], begins[i], replicas);
  }
  return layout;
}

RankElements count_elements(const Chain& chain,
                            const Part& part,
                            bool compute_is_float32,
                            const Replication& replication) {
  using program::Shard;
  const Shard shard = replication.shard;
  const auto is_here = [&](int64_t layer) {
    return layer == chain.size()
               ? part.has_loss
               : std::binary_search(part.layers.begin(), part.layers.end(), layer);
  };
  RankElements elements;
  for (const UnitSpec& unit : replication.units) {
    const auto users = std::count_if(unit.layers.begin(), unit.layers.end(), is_here);
    if (users == 0) {
      continue;
    }
    const UnitLayout layout = lay_out(unit, compute_is_float32, replication.replicas);
    const int64_t piece = layout.piece_count(replication.replica);
    const bool has_whole_gradients = shard == Shard::None || shard == Shard::Optimizer;
    const bool has_whole =
        shard == Shard::None || (compute_is_float32 && shard != Shard::Parameters);
    elements.weights += has_whole ? layout.elements : piece;
    elements.gradients += has_whole_gradients ? layout.elements : piece;
    elements.state += shard == Shard::None ? layout.elements : piece;
    // A unit that several layers of the rank use is one that they share. Whole, that gradient
    // stands by itself and is not rounded up.
    if (unit.parameters.size() == 1 && users > 1) {
      elements.shared_gradients += has_whole_gradients ? unit.parameters[0].count() : piece;
    }
    if (!compute_is_float32 && shard != Shard::Parameters) {
      elements.compute += layout.elements;
      for (const UnitRange& range : layout.ranges) {
        elements.whole_float32 += range.is_float32 && shard != Shard::None ? range.count : 0;
      }
    }
  }
  return elements;
}

}  // namespace penstock::model
