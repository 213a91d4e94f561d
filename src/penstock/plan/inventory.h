// What a rank holds from step to step, in elements and in bytes. Plans count it, and parameters and
// optimizers allocate it, so both agree.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "penstock/plan/holdings.h"
#include "penstock/plan/unit_layout.h"

namespace penstock::plan {

// What an optimizer keeps for each parameter, or needs room for.
struct StateSize {
  std::string name;
  enum class Layout {
    Slices,        // for each element that the rank moves
    Whole,         // for each element of a unit, whoever moves it
    PerParameter,  // one number
    Largest,       // for each element of the largest parameter
    Other,         // `elements`, of no unit
  } layout = Layout::Slices;
  int64_t elements = 0;
};

struct OptimizerSize {
  std::vector<StateSize> state;                                  // float32, saved in checkpoints
  std::vector<std::pair<std::string, int64_t>> workspaces = {};  // bytes, of the rank
};

// Where a rank stands, and what of the model it has.
struct RankPlace {
  std::vector<int32_t> layers;  // ascending; the number of layers: the loss
  program::Shard shard = program::Shard::None;
  int32_t replicas = 1;
  int32_t replica = 0;
  bool compute_is_float32 = true;  // layers see the weights themselves
  // A unit that several layers of the rank share has a gradient for each of them, added up when all
  // is there, in the order in which ranks that have these layers apart add them.
  bool keeps_shares = true;

  // What replicas do not divide, every one of them has whole.
  bool has_whole_weights() const;
  bool has_whole_gradients() const;
};

// What the rank has of one unit, in elements.
struct UnitStock {
  bool is_here = false;  // a layer of the rank uses it
  UnitLayout layout;
  int64_t weights = 0;        // float32: whole, or the slices of the rank
  int64_t compute = 0;        // what layers see in a lower precision, whole
  int64_t whole_float32 = 0;  // of parameters that layers see in float32 beside those
  // Of what is frozen: nothing.
  int64_t gradients = 0;                            // float32: whole, or the slices
  int64_t state = 0;                                // of each state buffer of layout Slices
  std::vector<std::pair<int32_t, int64_t>> shares;  // by layer
  int64_t shared_count = 0;  // of the rank's gradient, without padding: what other stages add
};

struct Inventory {
  RankPlace place;
  std::vector<UnitSize> sizes;
  std::vector<UnitStock> units;  // of all units of the model

  UnitStock total() const;  // sums; shares in no order
  int64_t state_elements(const StateSize& state) const;
};

Inventory take_inventory(const std::vector<UnitSize>& units, const RankPlace& place);

// As values, with units, slices and labels. compute_bytes: of an element as layers see it.
RankHoldings holdings_of(const Inventory& inventory,
                         const OptimizerSize& optimizer,
                         int64_t compute_bytes);

}  // namespace penstock::plan
