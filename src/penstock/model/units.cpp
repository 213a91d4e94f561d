#include "penstock/model/units.h"

#include "penstock/model/parameters.h"

namespace penstock::model {

namespace {

const std::string& name_of(const Chain& chain, int64_t layer) {
  return layer == chain.size() ? chain.loss().name() : chain.layer(layer).name();
}

plan::ParameterSize size_of(const ParameterSpec& spec) {
  return {.name = spec.name,
          .count = spec.count(),
          .flat = Parameters::flat_elements({spec}),
          .is_always_float32 = spec.is_always_float32,
          .is_frozen = spec.is_frozen};
}

}  // namespace

std::vector<plan::LayerSizes> layer_sizes(const Chain& chain) {
  std::vector<plan::LayerSizes> layers;
  for (int64_t layer = 0; layer <= chain.size(); ++layer) {
    plan::LayerSizes& sizes = layers.emplace_back(plan::LayerSizes{name_of(chain, layer)});
    for (const ParameterSpec& spec : chain.parameters_of(layer)) {
      sizes.parameters.push_back(size_of(spec));
    }
    if (layer < chain.size()) {
      for (const StateSpec& state : chain.layer(layer).state()) {
        sizes.state_bytes += 2 * TensorShape{state.shape, state.type}.bytes();
      }
    }
    sizes.backward_needs_weights =
        layer == chain.size() || chain.layer(layer).backward_needs_weights();
    sizes.weight_gradient_needs_weights =
        layer < chain.size() && chain.layer(layer).weight_gradient_needs_weights();
  }
  return layers;
}

std::vector<plan::UnitSize> make_units(const Chain& chain,
                                       const std::vector<int32_t>& cuts,
                                       int64_t least_bytes) {
  return plan::make_units(layer_sizes(chain), cuts, least_bytes);
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
