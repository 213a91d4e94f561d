#include <algorithm>

#include "penstock/plan/shard.h"

namespace penstock::plan {

namespace {

using program::Shard;

// What sharding adds to the work at a layer, or at the loss.
class Additions {
 public:
  Additions(const Sharding& sharding, int32_t loss_index, const std::vector<int32_t>& rank_of)
      : sharding_(sharding),
        rank_of_(rank_of),
        units_of_(program::units_by_layer(sharding.program_units(), loss_index)) {}

  // A forward, or a weight gradient: what its neighbours left, or will use.
  int64_t to_forward(int32_t layer) const { return left_buckets(layer) + weights(layer); }
  int64_t to_backward_weight(int32_t layer) const {
    return needs_weights(layer, program::Op::BackwardWeight) ? to_forward(layer)
                                                             : without_weights(layer);
  }
  // A backward, or the loss, makes buckets too.
  int64_t to_backward(int32_t layer, program::Op op) const {
    return buckets(layer) + (needs_weights(layer, op) ? to_forward(layer) : without_weights(layer));
  }
  // Those that an input gradient makes stay until the weight gradient has ended.
  int64_t buckets(int32_t layer) const {
    const bool has_buckets =
        sharding_.shard == Shard::Gradients || sharding_.shard == Shard::Parameters;
    int64_t all = 0;
    for (const int32_t unit : units_of(layer)) {
      all += has_buckets && !cost(unit).unit.is_frozen ? cost(unit).bucket_bytes : 0;
    }
    return all;
  }

 private:
  bool is_here(int32_t layer, int32_t other) const {
    return other >= 0 && static_cast<size_t>(other) < units_of_.size() &&
           (rank_of_.empty() ||
            rank_of_[static_cast<size_t>(layer)] == rank_of_[static_cast<size_t>(other)]);
  }
  const std::vector<int32_t>& units_of(int32_t layer) const {
    return units_of_[static_cast<size_t>(layer)];
  }
  const UnitCost& cost(int32_t unit) const { return sharding_.units[static_cast<size_t>(unit)]; }

  bool needs_weights(int32_t layer, program::Op op) const {
    const std::vector<int32_t>& units = units_of_[static_cast<size_t>(layer)];
    return std::any_of(units.begin(), units.end(), [&](int32_t unit) {
      return sharding_.units[static_cast<size_t>(unit)].unit.is_needed_for(op, layer);
    });
  }

  int64_t without_weights(int32_t layer) const {
    return left_buckets(layer) + weights_beside(layer);
  }

  int64_t left_buckets(int32_t layer) const {
    int64_t most = 0;
    for (const int32_t other : {layer - 1, layer, layer + 1}) {
      most = std::max(most, is_here(layer, other) ? buckets(other) : 0);
    }
    return most;
  }

  int64_t gathered(int32_t layer) const {
    int64_t all = 0;
    for (const int32_t unit : units_of(layer)) {
      all += cost(unit).gathered_bytes;
    }
    return all;
  }
  int64_t neighbours_weights(int32_t layer) const {
    int64_t most = 0;
    for (const int32_t other : {layer - 1, layer + 1}) {
      most = std::max(most, is_here(layer, other) ? gathered(other) : 0);
    }
    return most;
  }
  int64_t weights(int32_t layer) const {
    return sharding_.shard != Shard::Parameters ? 0
           : sharding_.keeps_gathered           ? all_weights(layer)
                                                : gathered(layer) + neighbours_weights(layer);
  }
  int64_t weights_beside(int32_t layer) const {
    return sharding_.shard != Shard::Parameters ? 0
           : sharding_.keeps_gathered           ? all_weights(layer)
                                      : std::max(gathered(layer), neighbours_weights(layer));
  }
  // Of the layer's rank.
  int64_t all_weights(int32_t layer) const {
    int64_t all = 0;
    for (const UnitCost& unit : sharding_.units) {
      const std::vector<int32_t>& layers = unit.unit.layers;
      if (std::any_of(
              layers.begin(), layers.end(), [&](int32_t one) { return is_here(layer, one); })) {
        all += unit.gathered_bytes;
      }
    }
    return all;
  }

  const Sharding& sharding_;
  const std::vector<int32_t>& rank_of_;
  const std::vector<std::vector<int32_t>> units_of_;
};

}  // namespace

CostTable with_sharding(const CostTable& table,
                        const Sharding& sharding,
                        const std::vector<int32_t>& rank_of) {
  CostTable result = table;
  if (sharding.replicas == 1) {
    return result;
  }
  const auto loss_index = static_cast<int32_t>(table.layers.size());
  const Additions additions(sharding, loss_index, rank_of);
  for (int32_t i = 0; i < loss_index; ++i) {
    const LayerCost& before = table.layers[static_cast<size_t>(i)];
    LayerCost& layer = result.layers[static_cast<size_t>(i)];
    layer.forward_extra_bytes += additions.to_forward(i);
    layer.weight_extra_bytes += additions.to_backward_weight(i);
    layer.weight_state_bytes = before.weight_work_bytes() + additions.buckets(i);
    for (size_t k = 0; k < layer.modes.size(); ++k) {
      SaveModeCost& mode = layer.modes[k];
      mode.forward_extra_bytes += additions.to_forward(i);
      mode.recompute_extra_bytes += additions.to_forward(i);
      mode.backward_extra_bytes += additions.to_backward(i, program::Op::Backward);
      mode.backward_input_extra_bytes = before.input_gradient_extra_bytes(before.modes[k]) +
                                        additions.to_backward(i, program::Op::BackwardInput);
    }
  }
  result.loss.extra_bytes += additions.to_backward(loss_index, program::Op::Loss);
  return result;
}

}  // namespace penstock::plan
