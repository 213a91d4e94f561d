// Random units over a chain, and what replicas of its pipeline share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/plan/shard.h"
#include "penstock/schedule/schedule.h"

#include "plan/random_chains.h"

namespace penstock::test {

// Layers with one unit, two or none; a table shared by the first layer and the loss; units of
// several layers where gradients are reduced once.
inline std::vector<plan::UnitCost> random_units(Dice& dice,
                                                int32_t loss_index,
                                                program::Shard shard) {
  const bool spans =
      shard == program::Shard::None || shard == program::Shard::Optimizer ? dice.chance(40) : false;
  std::vector<plan::UnitCost> units;
  // A layer's backward needs the weights of all its units, or of none.
  std::vector<bool> is_forward_only;
  for (int32_t layer = 0; layer < loss_index; ++layer) {
    is_forward_only.push_back(dice.chance(30));
  }
  is_forward_only.push_back(false);
  const auto add = [&](const std::vector<int32_t>& layers) {
    std::vector<int32_t> forward_only;
    std::copy_if(
        layers.begin(), layers.end(), std::back_inserter(forward_only), [&](int32_t layer) {
          return is_forward_only[static_cast<size_t>(layer)];
        });
    units.push_back({.unit = {cat("unit ", units.size()), layers, forward_only},
                     .gathered_bytes = dice.between(0, 9),
                     .bucket_bytes = dice.between(0, 9),
                     .gather_s = static_cast<double>(dice.between(0, 5)),
                     .reduce_s = static_cast<double>(dice.between(0, 5))});
  };
  if (dice.chance(50)) {
    add({0, loss_index});
  }
  for (int32_t layer = 0; layer <= loss_index; ++layer) {
    if (spans && layer < loss_index && dice.chance(50)) {
      add({layer, layer + 1});
    } else if (dice.chance(80)) {
      add({layer});
      if (dice.chance(20)) {
        add({layer});
      }
    }
  }
  return units;
}

inline plan::Sharding random_sharding(Dice& dice, int32_t loss_index, int32_t stage_ranks) {
  constexpr program::Shard shards[] = {program::Shard::None,
                                       program::Shard::Optimizer,
                                       program::Shard::Gradients,
                                       program::Shard::Parameters};
  plan::Sharding sharding{.replicas = static_cast<int32_t>(dice.between(1, 4)),
                          .shard = shards[dice.between(0, 3)],
                          .keeps_gathered = dice.chance(30)};
  sharding.units = random_units(dice, loss_index, sharding.shard);
  for (int32_t rank = 0; rank < stage_ranks * sharding.replicas; ++rank) {
    sharding.residents.push_back({{"parameters", dice.between(0, 20)}});
  }
  return sharding;
}

// Of each layer, then of the loss.
inline std::vector<int32_t> rank_of_layers(const schedule::Schedule& schedule,
                                           const std::vector<int32_t>& cuts) {
  std::vector<int32_t> ranks;
  for (size_t stage = 0; stage + 1 < cuts.size(); ++stage) {
    ranks.insert(
        ranks.end(), static_cast<size_t>(cuts[stage + 1] - cuts[stage]), schedule.rank_of[stage]);
  }
  ranks.push_back(schedule.rank_of.back());
  return ranks;
}

}  // namespace penstock::test
