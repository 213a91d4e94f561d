// The units of a chain: weights that are gathered, reduced and stepped together.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/model/chain.h"
#include "penstock/plan/inventory.h"
#include "penstock/plan/model_sizes.h"

namespace penstock::model {

// What plans have to know of the chain's parameters; the loss is the last.
std::vector<plan::LayerSizes> layer_sizes(const Chain& chain);

// plan::make_units() of them.
std::vector<plan::UnitSize> make_units(const Chain& chain,
                                       const std::vector<int32_t>& cuts,
                                       int64_t least_bytes);
// Each layer is one.
std::vector<plan::UnitSize> make_units(const Chain& chain);

// Where a rank stands among the replicas of its stage.
struct Replication {
  program::Shard shard = program::Shard::None;
  int32_t replicas = 1;
  int32_t replica = 0;
  std::vector<plan::UnitSize> units = {};  // of the whole chain; none: make_units(chain)
};

// keeps_shares: see RankPlace; a GPU adds to one gradient.
plan::Inventory take_inventory(const Chain& chain,
                               const Part& part,
                               bool compute_is_float32,
                               bool keeps_shares,
                               const Replication& replication);

}  // namespace penstock::model
