// Random units over a chain, and what the ranks of a program hold of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/comm/mesh.h"
#include "penstock/plan/holdings.h"
#include "penstock/program/program.h"

#include "plan/random_chains.h"

namespace penstock::test {

// Which ranks hold what. `rank_of`: of each layer, then of the loss: its rank in the pipeline.
struct HoldingsCase {
  std::vector<int32_t> rank_of;
  comm::Mesh mesh;
  program::Shard shard = program::Shard::None;
  // A unit that layers share may be on several ranks of the pipeline.
  bool ties_ranks = true;

  int32_t loss_index() const { return static_cast<int32_t>(rank_of.size()) - 1; }
  bool keeps_gradients() const {
    return shard == program::Shard::None || shard == program::Shard::Optimizer;
  }
};

class RandomHoldings {
 public:
  RandomHoldings(Dice& dice, const HoldingsCase& given) : dice_(dice), case_(given) {}

  plan::Holdings make() {
    plan::Holdings holdings;
    for (int32_t layer = 0; layer < case_.loss_index(); ++layer) {
      is_forward_only_.push_back(dice_.chance(30));
      is_weight_too_.push_back(!is_forward_only_.back() && dice_.chance(30));
    }
    is_forward_only_.push_back(false);  // the loss has no backward of its own
    is_weight_too_.push_back(false);
    add_shared();
    add_own();
    holdings.num_parameters = dice_.between(0, 9);
    holdings.ranks.resize(static_cast<size_t>(case_.mesh.ranks()));
    for (plan::RankHoldings& rank : holdings.ranks) {
      rank.shared_bytes.assign(units_.size(), 0);
    }
    for (int32_t unit = 0; unit < static_cast<int32_t>(units_.size()); ++unit) {
      hold_unit(holdings, unit);
    }
    hold_layer_state(holdings);
    for (plan::RankHoldings& rank : holdings.ranks) {
      add_of_rank(rank, /*has_state=*/!units_.empty());
      shuffle(rank.values);
    }
    holdings.units = units_;
    return holdings;
  }

 private:
  using Value = program::Value;
  using ValueKind = program::ValueKind;
  using Slices = std::vector<program::Slice>;

  void add_unit(const std::vector<int32_t>& layers, bool is_shared) {
    program::Unit unit{.name = cat("unit ", units_.size()),
                       .layers = layers,
                       .is_shared = is_shared,
                       .is_frozen = dice_.chance(15)};
    const auto copy_those = [&](const std::vector<bool>& are, std::vector<int32_t>& into) {
      std::copy_if(layers.begin(), layers.end(), std::back_inserter(into), [&](int32_t layer) {
        return are[static_cast<size_t>(layer)];
      });
    };
    copy_those(is_forward_only_, unit.forward_only);
    copy_those(is_weight_too_, unit.weight_too);
    const bool is_known = case_.shard != program::Shard::None || dice_.chance(50);
    unit.elements = is_known ? dice_.between(1, 8) : 0;
    units_.push_back(std::move(unit));
  }

  // A table that two or three layers have, of which the last may be the loss.
  void add_shared() {
    const int32_t loss = case_.loss_index();
    if (loss == 0 || !dice_.chance(50)) {
      return;
    }
    std::set<int32_t> layers{static_cast<int32_t>(dice_.between(0, loss - 1)),
                             static_cast<int32_t>(dice_.between(0, loss)),
                             loss};
    if (!case_.ties_ranks) {
      std::erase_if(layers, [&](int32_t layer) {
        return case_.rank_of[static_cast<size_t>(layer)] !=
               case_.rank_of[static_cast<size_t>(loss)];
      });
    }
    add_unit({layers.begin(), layers.end()}, true);
  }

  // Layers with one unit, two or none; two layers of a rank with one, where gradients are whole.
  void add_own() {
    const bool spans = case_.keeps_gradients() && dice_.chance(40);
    for (int32_t layer = 0; layer <= case_.loss_index(); ++layer) {
      const bool has_neighbour =
          layer < case_.loss_index() && case_.rank_of[static_cast<size_t>(layer)] ==
                                            case_.rank_of[static_cast<size_t>(layer) + 1];
      if (spans && has_neighbour && dice_.chance(50)) {
        add_unit({layer, layer + 1}, false);
      } else if (dice_.chance(80)) {
        add_unit({layer}, dice_.chance(5));
        if (dice_.chance(20)) {
          add_unit({layer}, false);
        }
      }
    }
  }

  // Of each replica: one slice or two, uneven, some of them empty. With two, all of the first come
  // before all of the second: elements in another precision are cut by themselves.
  std::vector<Slices> cut(int64_t elements) {
    std::vector<Slices> all(static_cast<size_t>(case_.mesh.data));
    const int64_t middle = dice_.chance(40) ? dice_.between(0, elements) : elements;
    cut_range(0, middle, all);
    if (middle < elements) {
      cut_range(middle, elements, all);
    }
    for (Slices& slices : all) {
      std::erase_if(slices, [](const program::Slice& one) { return one.count() == 0; });
      if (slices.empty()) {
        slices.push_back({});  // nothing of it
      }
    }
    return all;
  }
  void cut_range(int64_t first, int64_t end, std::vector<Slices>& all) {
    for (size_t replica = 0; replica < all.size(); ++replica) {
      const bool is_last = replica + 1 == all.size();
      const int64_t next = is_last ? end : dice_.between(first, end);
      all[replica].push_back({first, next});
      first = next;
    }
  }

  program::Tier tier() {
    return dice_.chance(80)   ? program::Tier::Device
           : dice_.chance(60) ? program::Tier::Host
                              : program::Tier::Disk;
  }

  std::vector<int32_t> layers_on(int32_t stage_rank, int32_t unit) const {
    std::vector<int32_t> found;
    const std::vector<int32_t>& layers = units_[static_cast<size_t>(unit)].layers;
    std::copy_if(layers.begin(), layers.end(), std::back_inserter(found), [&](int32_t layer) {
      return case_.rank_of[static_cast<size_t>(layer)] == stage_rank;
    });
    return found;
  }

  // Of each replica: what it moves of a unit; no slices where all move all of it.
  std::vector<Slices> moved_slices(const program::Unit& unit) {
    return case_.shard == program::Shard::None
               ? std::vector<Slices>(static_cast<size_t>(case_.mesh.data))
               : cut(unit.elements);
  }

  void hold_unit(plan::Holdings& holdings, int32_t unit) {
    const program::Unit& of = units_[static_cast<size_t>(unit)];
    const bool has_copy = case_.shard != program::Shard::Parameters && dice_.chance(50);
    const std::vector<Slices> moved = moved_slices(of);
    const int64_t shared_bytes = dice_.between(0, 9);
    for (int32_t stage = 0; stage < case_.mesh.pipeline; ++stage) {
      const std::vector<int32_t> here = layers_on(stage, unit);
      if (here.empty()) {
        continue;
      }
      const std::vector<Value> values =
          values_of(unit,
                    has_copy,
                    of.is_shared && !of.is_frozen ? choose_shares(here) : std::vector<int32_t>{});
      for (int32_t replica = 0; replica < case_.mesh.data; ++replica) {
        plan::RankHoldings& rank = holdings.ranks[static_cast<size_t>(
            case_.mesh.rank_at({.data = replica, .pipeline = stage}))];
        for (const Value& value : values) {
          rank.values.push_back(of_replica(value, has_copy, moved[static_cast<size_t>(replica)]));
        }
        rank.shared_bytes[static_cast<size_t>(unit)] = shared_bytes;
      }
    }
  }

  // All of a unit, as a rank that divides nothing holds it.
  std::vector<Value> values_of(int32_t unit, bool has_copy, const std::vector<int32_t>& shares) {
    std::vector<Value> values;
    const auto add = [&](ValueKind kind, int32_t layer = -1) {
      values.push_back({.kind = kind, .layer = layer, .unit = unit, .bytes = dice_.between(0, 9)});
    };
    add(ValueKind::Master);
    if (has_copy) {
      add(ValueKind::Compute);
    }
    if (!units_[static_cast<size_t>(unit)].is_frozen) {
      add(ValueKind::GradientSum);
      add(ValueKind::State);
    }
    for (const int32_t layer : shares) {
      add(ValueKind::Share, layer);
    }
    return values;
  }

  // What is whole has one size on all replicas, on any tier.
  plan::HeldValue of_replica(const Value& value, bool has_copy, const Slices& moved) {
    using program::Shard;
    const bool is_sharded = case_.shard != Shard::None;
    const bool is_divided = value.kind == ValueKind::State ? is_sharded
                            : value.kind == ValueKind::Master
                                ? case_.shard == Shard::Parameters || (is_sharded && has_copy)
                            : value.kind == ValueKind::Compute ? false
                                                               : !case_.keeps_gradients();
    plan::HeldValue held{.value = value};
    held.value.tier = tier();
    if (is_divided) {
      held.value.slices = moved;
      held.value.bytes = dice_.between(0, 9);
    }
    return held;
  }

  // Of the layers that share a unit on a rank: those with a gradient of their own, never all.
  std::vector<int32_t> choose_shares(std::vector<int32_t> layers) {
    shuffle(layers);
    layers.erase(layers.begin(), dice_.chance(60) ? layers.begin() + 1 : layers.end());
    std::sort(layers.begin(), layers.end());
    return layers;
  }

  // Some layers have some, on all replicas alike.
  void hold_layer_state(plan::Holdings& holdings) {
    for (int32_t layer = 0; layer < case_.loss_index(); ++layer) {
      if (!dice_.chance(15)) {
        continue;
      }
      const int64_t bytes = dice_.between(0, 9);
      for (int32_t replica = 0; replica < case_.mesh.data; ++replica) {
        plan::RankHoldings& rank = holdings.ranks[static_cast<size_t>(case_.mesh.rank_at(
            {.data = replica, .pipeline = case_.rank_of[static_cast<size_t>(layer)]}))];
        rank.values.push_back(
            {{.kind = ValueKind::LayerState, .tier = tier(), .layer = layer, .bytes = bytes}});
      }
    }
  }

  void add_of_rank(plan::RankHoldings& rank, bool has_state) {
    for (int64_t i = has_state ? dice_.between(-2, 2) : 0; i > 0; --i) {
      plan::HeldValue state = plan::fixed_value(cat("state ", i), dice_.between(0, 9));
      state.value.kind = ValueKind::RankState;
      state.value.tier = tier();
      rank.values.push_back(std::move(state));
    }
    for (int64_t i = dice_.between(0, 2); i > 0; --i) {
      plan::HeldValue fixed = plan::fixed_value(cat("workspace ", i), dice_.between(0, 9));
      fixed.value.tier = tier();
      rank.values.push_back(std::move(fixed));
    }
  }

  template <typename T>
  void shuffle(std::vector<T>& list) {
    for (size_t i = list.size(); i > 1; --i) {
      std::swap(list[i - 1],
                list[static_cast<size_t>(dice_.between(0, static_cast<int64_t>(i) - 1))]);
    }
  }

  Dice& dice_;
  const HoldingsCase case_;
  std::vector<bool> is_forward_only_, is_weight_too_;
  std::vector<program::Unit> units_;
};

inline plan::Holdings random_holdings(Dice& dice, const HoldingsCase& given) {
  return RandomHoldings(dice, given).make();
}

// What ranks hold where nobody knows of units.
inline plan::Holdings bare_holdings(Dice& dice, int32_t ranks) {
  plan::Holdings holdings;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    std::vector<program::Held> held;
    for (int64_t i = dice.between(0, 3); i > 0; --i) {
      held.push_back({cat("held ", i), dice.between(0, 9)});
    }
    holdings.ranks.push_back(plan::fixed_holdings(held));
  }
  return holdings;
}

}  // namespace penstock::test
