// What the ranks of a test's program hold, by units: such a program sets gradients at the first
// work of an update, adds up those that layers share, and steps as a run's does.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/model/units.h"
#include "penstock/plan/holdings.h"
#include "penstock/plan/inventory.h"

namespace penstock::test {

inline plan::RankHoldings rank_holdings(const plan::Inventory& inventory, at::ScalarType type) {
  return plan::holdings_of(
      inventory, /*optimizer=*/{}, static_cast<int64_t>(c10::elementSize(type)));
}

inline std::vector<program::Unit> units_of(const plan::Inventory& inventory) {
  std::vector<program::Unit> units;
  for (const plan::UnitSize& size : inventory.sizes) {
    units.push_back(size.unit);
  }
  return units;
}

// Of the only rank, without an optimizer. `held_bytes`: all that the process holds; what of it is
// not these parameters' is a value of its own.
inline plan::Holdings holdings_alone(const model::Parameters& parameters, int64_t held_bytes = 0) {
  plan::RankHoldings rank = rank_holdings(parameters.inventory(), parameters.compute_type());
  if (const int64_t other = held_bytes - rank.bytes(); other > 0) {
    rank.values.push_back(plan::fixed_value("other", other));
  }
  plan::Holdings holdings{.units = units_of(parameters.inventory()),
                          .num_parameters = static_cast<int64_t>(parameters.learning().size())};
  holdings.ranks.push_back(std::move(rank));
  return holdings;
}

// Of the ranks of a pipeline on the CPU that have these parts, without optimizers.
inline plan::Holdings pipeline_holdings(const model::Chain& chain,
                                        const std::vector<model::Part>& parts,
                                        at::ScalarType type) {
  plan::Holdings holdings{.num_parameters = static_cast<int64_t>(chain.parameters().size())};
  for (const model::Part& part : parts) {
    const plan::Inventory inventory = model::take_inventory(
        chain, part, type == at::kFloat, /*keeps_shares=*/true, model::Replication{});
    holdings.units = units_of(inventory);
    holdings.ranks.push_back(rank_holdings(inventory, type));
  }
  return holdings;
}

// The same values, of no bytes: for limits that are of what a rank holds beside them.
inline plan::Holdings without_bytes(plan::Holdings holdings) {
  for (plan::RankHoldings& rank : holdings.ranks) {
    for (plan::HeldValue& held : rank.values) {
      held.value.bytes = 0;
    }
  }
  return holdings;
}

}  // namespace penstock::test
