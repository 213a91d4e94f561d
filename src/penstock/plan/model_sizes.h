// What the planner has to know of a model beside the seconds and bytes of its layers: the parameters
// that each layer uses. From them come units, and what ranks hold from step to step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/plan/exchanges.h"
#include "penstock/plan/inventory.h"

namespace penstock::plan {

struct LayerSizes {
  std::string name;
  std::vector<ParameterSize> parameters = {};
  bool backward_needs_weights = true;
  bool weight_gradient_needs_weights = false;  // where it is computed apart
  // Of what the layer changes beside gradients: as the step began, and as its forwards leave it.
  int64_t state_bytes = 0;
};

struct ModelSizes {
  std::vector<LayerSizes> layers = {};  // the loss is the last; none: nobody knows them
  int64_t compute_bytes = 4;            // of an element as layers see it
  bool keeps_shares = true;             // see RankPlace
  // What the optimizer of a rank with this inventory keeps.
  std::function<OptimizerSize(const Inventory&)> optimizer = {};
  // What replicas exchange in the update of a run's first step, and what such a rank sends for it.
  // Nothing: gradients are reduced, and that is all.
  UpdateForm first_form = {};
  std::function<ExchangeBytes(const Inventory&)> exchanges = {};

  bool is_known() const { return !layers.empty(); }
  int32_t num_layers() const {
    return static_cast<int32_t>(layers.size()) - 1;
  }                                // without the loss
  int64_t num_parameters() const;  // that learn; each counts once, whoever shares it
  // What a copy of the weights of these layers takes, in blocks of so many bytes.
  int64_t copy_bytes(const std::vector<int32_t>& of_layers, int64_t block_bytes) const;
};

// Of a chain whose stages begin with the layers `cuts` (and end with their number). Consecutive
// layers of a stage are one unit until it has `least_bytes` of float32; 0: each layer is one. A
// parameter that several layers share is a unit by itself. What is frozen has units of its own,
// after those of all that learns.
std::vector<UnitSize> make_units(const std::vector<LayerSizes>& layers,
                                 const std::vector<int32_t>& cuts,
                                 int64_t least_bytes);

}  // namespace penstock::plan
