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

UnitSize empty_unit(const std::string& name) {
  UnitSize made;
  made.unit.name = name;
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
    for (UnitSize& unit : units_) {
      std::stable_partition(unit.parameters.begin(),
                            unit.parameters.end(),
                            [](const ParameterSize& size) { return !size.is_always_float32; });
      if (unit.unit.layers.size() > 1) {
        unit.unit.name =
            cat(unit.unit.name, " to ", layers_[static_cast<size_t>(unit.unit.layers.back())].name);
      }
    }
    units_.insert(units_.end(), shared_.begin(), shared_.end());
    for (UnitSize& unit : units_) {
      finish(unit);
    }
    return std::move(units_);
  }

 private:
  void add_layer(int32_t layer) {
    const LayerSizes& sizes = layers_[static_cast<size_t>(layer)];
    const bool is_loss = layer + 1 == static_cast<int32_t>(layers_.size());
    const bool begins_stage =
        !is_loss && std::find(cuts_.begin(), cuts_.end(), layer) != cuts_.end();
    is_open_ = is_open_ && !begins_stage && bytes_ < least_bytes_;
    for (const ParameterSize& parameter : sizes.parameters) {
      if (!seen_.insert(parameter.name).second) {
        continue;
      }
      if (const std::vector<int32_t>& users = users_.at(parameter.name); users.size() > 1) {
        UnitSize& unit = shared_.emplace_back(empty_unit(parameter.name));
        unit.parameters = {parameter};
        unit.unit.layers = users;
        unit.unit.is_shared = true;
        continue;
      }
      if (!is_open_) {
        units_.push_back(empty_unit(sizes.name));
        is_open_ = true;
        bytes_ = 0;
      }
      UnitSize& unit = units_.back();
      if (unit.unit.layers.empty() || unit.unit.layers.back() != layer) {
        unit.unit.layers.push_back(layer);
      }
      unit.parameters.push_back(parameter);
      bytes_ += 4 * parameter.count;
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
  }

  const std::vector<LayerSizes>& layers_;
  const std::vector<int32_t>& cuts_;
  const int64_t least_bytes_;
  const std::map<std::string, std::vector<int32_t>> users_;
  std::vector<UnitSize> units_, shared_;
  std::set<std::string> seen_;
  bool is_open_ = false;
  int64_t bytes_ = 0;  // of the open unit
};

}  // namespace

int64_t ModelSizes::num_parameters() const {
  return static_cast<int64_t>(users_of(layers).size());
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
