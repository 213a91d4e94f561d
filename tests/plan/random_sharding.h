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
// several layers where gradients are reduced once, or that the layers share.
inline std::vector<plan::UnitCost> random_units(Dice& dice,
                                                int32_t loss_index,
                                                program::Shard shard) {
  const bool spans = dice.chance(40);
  const bool has_buckets =
      shard == program::Shard::Gradients || shard == program::Shard::Parameters;
  std::vector<plan::UnitCost> units;
  // A layer's backward needs the weights of all its units, or of none.
  std::vector<bool> is_forward_only, is_weight_too;
  for (int32_t layer = 0; layer < loss_index; ++layer) {
    is_forward_only.push_back(dice.chance(30));
    is_weight_too.push_back(!is_forward_only.back() && dice.chance(30));
  }
  is_forward_only.push_back(false);
  is_weight_too.push_back(false);
  const auto add = [&](const std::vector<int32_t>& layers, bool is_shared) {
    const auto those = [&](const std::vector<bool>& are) {
      std::vector<int32_t> some;
      std::copy_if(layers.begin(), layers.end(), std::back_inserter(some), [&](int32_t layer) {
        return are[static_cast<size_t>(layer)];
      });
      return some;
    };
    units.push_back({.unit = {.name = cat("unit ", units.size()),
                              .layers = layers,
                              .forward_only = those(is_forward_only),
                              .weight_too = those(is_weight_too),
                              .is_shared = is_shared,
                              .is_frozen = dice.chance(15),
                              .elements = dice.between(1, 12)},
                     .gathered_bytes = dice.between(0, 9),
                     .bucket_bytes = dice.between(0, 9),
                     .gather_s = static_cast<double>(dice.between(0, 5)),
                     .reduce_s = static_cast<double>(dice.between(0, 5))});
  };
  if (dice.chance(50)) {
    add({0, loss_index}, true);
  }
  for (int32_t layer = 0; layer <= loss_index; ++layer) {
    if (spans && layer < loss_index && dice.chance(50)) {
      add({layer, layer + 1}, has_buckets || dice.chance(50));
    } else if (dice.chance(80)) {
      add({layer}, false);
      if (dice.chance(20)) {
        add({layer}, false);
      }
    }
  }
  return units;
}

inline plan::Sharding random_sharding(Dice& dice, int32_t loss_index, int32_t most_replicas = 4) {
  plan::Sharding sharding{.replicas = static_cast<int32_t>(dice.between(1, most_replicas)),
                          .shard = program::kShards[static_cast<size_t>(dice.between(0, 3))],
                          .keeps_gathered = dice.chance(30)};
  sharding.units = random_units(dice, loss_index, sharding.shard);
  for (plan::UnitCost& unit : sharding.units) {
    for (int32_t replica = 0; replica < sharding.replicas && !dice.chance(5); ++replica) {
      unit.gather_sent.push_back(dice.between(0, 99));
      unit.reduce_sent.push_back(dice.between(0, 99));
    }
    if (unit.gather_sent.size() < static_cast<size_t>(sharding.replicas)) {
      unit.gather_sent = unit.reduce_sent = {};  // not known
    }
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

// A unit that several ranks of a pipeline have is one that its layers share.
inline void share_between_ranks(std::vector<plan::UnitCost>& units,
                                const std::vector<int32_t>& rank_of) {
  for (plan::UnitCost& one : units) {
    const auto rank = [&](int32_t layer) { return rank_of[static_cast<size_t>(layer)]; };
    const int32_t first = rank(one.unit.layers.front());
    const auto is_elsewhere = [&](int32_t layer) { return rank(layer) != first; };
    one.unit.is_shared = one.unit.is_shared ||
                         std::any_of(one.unit.layers.begin(), one.unit.layers.end(), is_elsewhere);
  }
}

}  // namespace penstock::test
