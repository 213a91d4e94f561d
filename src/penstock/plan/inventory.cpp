#include "penstock/plan/inventory.h"

#include <algorithm>

#include "penstock/base/error.h"

namespace penstock::plan {

namespace {

using program::Shard;
using program::ValueKind;

constexpr int64_t kFloatBytes = 4;

// Of the slices that the rank has, those of the parameter itself and not of its padding.
int64_t count_in_slices(const UnitLayout& layout, int64_t count, int32_t replica) {
  int64_t sum = 0;
  for (const program::Slice& slice : layout.slices(replica)) {
    sum += std::max<int64_t>(0, std::min(slice.end, count) - slice.first);
  }
  return sum;
}

UnitStock stock_of(const UnitSize& size, const RankPlace& place) {
  UnitStock stock;
  std::vector<int32_t> users;
  std::set_intersection(size.unit.layers.begin(),
                        size.unit.layers.end(),
                        place.layers.begin(),
                        place.layers.end(),
                        std::back_inserter(users));
  stock.is_here = !users.empty();
  if (!stock.is_here) {
    return stock;
  }
  stock.layout = lay_out(size, place.compute_is_float32, place.replicas);
  const int64_t whole = stock.layout.elements;
  const bool is_sharded = place.shard != Shard::None;
  const int64_t slices = is_sharded ? stock.layout.slice_count(place.replica) : whole;
  const bool has_whole_gradients = place.has_whole_gradients();
  stock.weights = place.has_whole_weights() ? whole : slices;
  if (!size.unit.is_frozen) {
    stock.gradients = has_whole_gradients ? whole : slices;
    stock.state = slices;
  }
  if (!place.compute_is_float32 && place.shard != Shard::Parameters) {
    stock.compute = whole;
    for (const UnitRange& range : stock.layout.ranges) {
      stock.whole_float32 += range.is_float32 && is_sharded ? range.count : 0;
    }
  }
  if (size.unit.is_shared && !size.unit.is_frozen) {
    const int64_t count = size.parameters.front().count;
    stock.shared_count = has_whole_gradients && !is_sharded
                             ? count
                             : count_in_slices(stock.layout, count, place.replica);
    for (size_t i = 1; i < users.size() && place.keeps_shares; ++i) {
      // Whole, it stands by itself and is not rounded up.
      stock.shares.push_back({users[i], has_whole_gradients ? count : slices});
    }
  }
  return stock;
}

}  // namespace

bool RankPlace::has_whole_weights() const {
  return shard == Shard::None || (compute_is_float32 && shard != Shard::Parameters);
}

bool RankPlace::has_whole_gradients() const {
  return shard == Shard::None || shard == Shard::Optimizer;
}

Inventory take_inventory(const std::vector<UnitSize>& units, const RankPlace& place) {
  Inventory inventory{place, units, {}};
  for (const UnitSize& unit : units) {
    inventory.units.push_back(stock_of(unit, place));
  }
  return inventory;
}

UnitStock Inventory::total() const {
  UnitStock sum;
  for (const UnitStock& one : units) {
    sum.layout.elements += one.layout.elements;
    sum.weights += one.weights;
    sum.compute += one.compute;
    sum.whole_float32 += one.whole_float32;
    sum.gradients += one.gradients;
    sum.state += one.state;
    sum.shares.insert(sum.shares.end(), one.shares.begin(), one.shares.end());
  }
  return sum;
}

int64_t Inventory::state_elements(const StateSize& state) const {
  int64_t sum = state.layout == StateSize::Layout::Other ? state.elements : 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (!units[i].is_here || sizes[i].unit.is_frozen) {
      continue;
    }
    switch (state.layout) {
      case StateSize::Layout::Slices:
        sum += units[i].state;
        break;
      case StateSize::Layout::Whole:
        sum += units[i].layout.elements;
        break;
      case StateSize::Layout::PerParameter:
        sum += static_cast<int64_t>(sizes[i].parameters.size());
        break;
      case StateSize::Layout::Largest:
        for (const ParameterSize& parameter : sizes[i].parameters) {
          sum = std::max(sum, parameter.count);
        }
        break;
      case StateSize::Layout::Other:
        break;
    }
  }
  return sum;
}

RankHoldings holdings_of(const Inventory& inventory,
                         const OptimizerSize& optimizer,
                         int64_t compute_bytes) {
  RankHoldings holdings;
  const bool is_sharded = inventory.place.shard != Shard::None;
  for (size_t i = 0; i < inventory.units.size(); ++i) {
    const UnitStock& stock = inventory.units[i];
    holdings.shared_bytes.push_back(kFloatBytes * stock.shared_count);
    if (!stock.is_here) {
      continue;
    }
    const auto slices =
        is_sharded ? stock.layout.slices(inventory.place.replica) : std::vector<program::Slice>();
    const auto add = [&](ValueKind kind, int64_t bytes, bool is_whole, int32_t layer = -1) {
      holdings.values.push_back({{.kind = kind,
                                  .layer = layer,
                                  .unit = static_cast<int32_t>(i),
                                  .bytes = bytes,
                                  .slices = is_whole ? std::vector<program::Slice>() : slices}});
    };
    const int64_t whole = stock.layout.elements;
    add(ValueKind::Master, kFloatBytes * stock.weights, inventory.place.has_whole_weights());
    if (stock.compute > 0) {
      add(ValueKind::Compute,
          compute_bytes * stock.compute + kFloatBytes * stock.whole_float32,
          /*is_whole=*/true);
    }
    if (inventory.sizes[i].unit.is_frozen) {
      continue;
    }
    const bool has_whole_gradients = inventory.place.has_whole_gradients();
    add(ValueKind::GradientSum, kFloatBytes * stock.gradients, has_whole_gradients);
    for (const auto& [layer, elements] : stock.shares) {
      add(ValueKind::Share, kFloatBytes * elements, has_whole_gradients, layer);
    }
    int64_t state = 0;
    for (const StateSize& one : optimizer.state) {
      state += one.layout == StateSize::Layout::Slices  ? stock.state
               : one.layout == StateSize::Layout::Whole ? whole
               : one.layout == StateSize::Layout::PerParameter
                   ? static_cast<int64_t>(inventory.sizes[i].parameters.size())
                   : 0;
    }
    add(ValueKind::State, kFloatBytes * state, !is_sharded);
  }
  for (const StateSize& one : optimizer.state) {
    if (one.layout == StateSize::Layout::Other && one.elements > 0) {
      holdings.values.push_back(
          {{.kind = ValueKind::RankState, .bytes = kFloatBytes * one.elements}, one.name});
    }
  }
  for (const auto& [name, bytes] : optimizer.workspaces) {
    if (bytes > 0) {
      holdings.values.push_back(fixed_value(name, bytes));
    }
  }
  return holdings;
}

}  // namespace penstock::plan
