// Measures a chain on this device: seconds and bytes of every layer, for one micro-batch, as a cost
// table. Layers of one kind with the same input are measured once. docs/planning.md says how.
#pragma once

#include <functional>

#include "penstock/model/layer.h"
#include "penstock/plan/cost_table.h"

namespace penstock::device {
struct Device;
}
namespace penstock::model {
class Chain;
struct ChainShapes;
class Parameters;
}  // namespace penstock::model

namespace penstock::profile {

struct ProfileOptions {
  bool only_bytes = false;      // one round, no seconds
  bool measures_split = false;  // also the split backward, for schedules that have it
  int least_rounds = 7;
  int most_rounds = 40;
  double most_seconds = 20;  // no further round after these, once there were least_rounds
  double stable = 0.01;      // a median is stable when its error is this share of it
  // GPU: rounds for these seconds come first and do not count. A GPU at work falls to the clock
  // that its power limit allows, and a step runs at that clock.
  double warm_seconds = 3;

  // The optimizer's step, to be timed as it is. Nothing: left out of the table.
  std::function<void()> step = nullptr;
  // After each round: rounds done, and rounds at most.
  std::function<void(int, int)> on_round = nullptr;
};

// `batch` is one micro-batch. Holds what the layer at hand needs and one
// activation. Where the account has a limit, a save mode that breaks it is given bytes beyond the
// limit and guessed seconds: no plan within that limit can use it. Throws Error after Ctrl-C.
// Leaves rubbish in the parameters' gradients. What is held and the description are left to the caller,
// who knows them.
plan::CostTable measure(const model::Chain& chain,
                        model::Parameters& parameters,
                        const model::Fields& batch,
                        const ProfileOptions& options);

// What a tensor of so many bytes occupies.
int64_t held_bytes(const device::Device& device, int64_t bytes);

// What is carried past layers.
std::vector<plan::CarriedCost> carried_costs(const model::Chain& chain,
                                             const model::ChainShapes& shapes,
                                             const device::Device& device);

// Bytes as the layers' shapes give them, without running anything: no seconds, no transients.
// Enough for a program that is under no limit.
plan::CostTable sizes_of(const model::Chain& chain,
                         at::ScalarType compute_type,
                         const device::Device& device,
                         const model::Fields& batch);

// The same, as these parameters have it.
plan::CostTable sizes_of(const model::Chain& chain,
                         const model::Parameters& parameters,
                         const model::Fields& batch);

}  // namespace penstock::profile
