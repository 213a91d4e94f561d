#include "penstock/plan/model_sizes.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "penstock/base/text.h"

namespace penstock::plan {

namespace {

// By name: the layers that use a parameter.
std::map<std::string, std::vector<int32_t>> users_of(const std::vector<LayerSizes>& layers) {
  std::map<std::string, std::vector<int32_t>> users;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (const ParameterSize& parameter : layers[layer].parameters) {
      users[parameter.name].push_back(static_cast<int32_t>(layer));
    }
  }
  return users;
}

UnitSize empty_unit(const std::string& name, bool is_frozen) {
  UnitSize made;
  made.unit.name = name;
  made.unit.is_frozen = is_frozen;
  return made;
}

// Goes over the layers and opens and closes units.
class UnitMaker {
 public:
  UnitMaker(const std::vector<LayerSizes>& layers,
            const std::vector<int32_t>& cuts,
            int64_t least_bytes)
      : layers_(layers), cuts_(cuts), least_bytes_(least_bytes), users_(users_of(layers)) {}

  std::vector<UnitSize> run() {
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      add_layer(static_cast<int32_t>(layer));
    }
    std::vector<UnitSize> all;
    for (Made* made : {&learning_, &frozen_}) {
      for (UnitSize& unit : made->units) {
        std::stable_partition(unit.parameters.begin(),
                              unit.parameters.end(),
                              [](const ParameterSize& size) { return !size.is_always_float32; });
        if (unit.unit.layers.size() > 1) {
          unit.unit.name = cat(
              unit.unit.name, " to ", layers_[static_cast<size_t>(unit.unit.layers.back())].name);
        }
      }
      std::move(made->units.begin(), made->units.end(), std::back_inserter(all));
      std::move(made->shared.begin(), made->shared.end(), std::back_inserter(all));
    }
    for (UnitSize& unit : all) {
      finish(unit);
    }
    return all;
  }

 private:
  // Units of what learns, or of what is frozen.
  struct Made {
    std::vector<UnitSize> units, shared;
    bool is_open = false;
    int64_t bytes = 0;  // of the open unit
  };

  void add_layer(int32_t layer) {
    const LayerSizes& sizes = layers_[static_cast<size_t>(layer)];
    const bool is_loss = layer + 1 == static_cast<int32_t>(layers_.size());
    const bool begins_stage =
        !is_loss && std::find(cuts_.begin(), cuts_.end(), layer) != cuts_.end();
    for (Made* made : {&learning_, &frozen_}) {
      made->is_open = made->is_open && !begins_stage && made->bytes < least_bytes_;
    }
    for (const ParameterSize& parameter : sizes.parameters) {
      if (!seen_.insert(parameter.name).second) {
        continue;
      }
      Made& made = parameter.is_frozen ? frozen_ : learning_;
      if (const std::vector<int32_t>& users = users_.at(parameter.name); users.size() > 1) {
        UnitSize& unit = made.shared.emplace_back(empty_unit(parameter.name, parameter.is_frozen));
        unit.parameters = {parameter};
        unit.unit.layers = users;
        unit.unit.is_shared = true;
        continue;
      }
      if (!made.is_open) {
        made.units.push_back(empty_unit(sizes.name, parameter.is_frozen));
        made.is_open = true;
        made.bytes = 0;
      }
      UnitSize& unit = made.units.back();
      if (unit.unit.layers.empty() || unit.unit.layers.back() != layer) {
        unit.unit.layers.push_back(layer);
      }
      unit.parameters.push_back(parameter);
      made.bytes += 4 * parameter.count;
    }
  }

  void finish(UnitSize& unit) const {
    for (const int32_t layer : unit.unit.layers) {
      const LayerSizes& sizes = layers_[static_cast<size_t>(layer)];
      if (!sizes.backward_needs_weights) {
        unit.unit.forward_only.push_back(layer);
      } else if (sizes.weight_gradient_needs_weights) {
        unit.unit.weight_too.push_back(layer);
      }
    }
    for (const ParameterSize& parameter : unit.parameters) {
      unit.unit.elements += parameter.flat;
    }
    if (unit.unit.is_frozen) {
      unit.unit.name += " (frozen)";
    }
  }

  const std::vector<LayerSizes>& layers_;
  const std::vector<int32_t>& cuts_;
  const int64_t least_bytes_;
  const std::map<std::string, std::vector<int32_t>> users_;
  Made learning_, frozen_;
  std::set<std::string> seen_;
};

}  // namespace

int64_t ModelSizes::num_parameters() const {
  std::set<std::string> learning;
  for (const LayerSizes& layer : layers) {
    for (const ParameterSize& parameter : layer.parameters) {
      if (!parameter.is_frozen) {
        learning.insert(parameter.name);
      }
    }
  }
  return static_cast<int64_t>(learning.size());
}

int64_t ModelSizes::copy_bytes(const std::vector<int32_t>& of_layers, int64_t block_bytes) const {
  std::set<std::string> seen;
  int64_t flat = 0, apart = 0;  // in the compute type; those that stay float32 beside them
  for (const int32_t layer : of_layers) {
    for (const ParameterSize& parameter : layers[static_cast<size_t>(layer)].parameters) {
      if (seen.insert(parameter.name).second) {
        flat += compute_bytes * parameter.flat;
        apart += parameter.is_always_float32 && compute_bytes != 4 ? 4 * parameter.count : 0;
      }
    }
  }
  if (block_bytes == 1) {
    return flat + apart;
  }
  // Two tensors, each ends with a block.
  return (flat + apart + block_bytes - 1) / block_bytes * block_bytes + block_bytes;
}

std::vector<UnitSize> make_units(const std::vector<LayerSizes>& layers,
                                 const std::vector<int32_t>& cuts,
                                 int64_t least_bytes) {
  return UnitMaker(layers, cuts, least_bytes).run();
}

}  // namespace penstock::plan
