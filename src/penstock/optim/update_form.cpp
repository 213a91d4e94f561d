#include "penstock/optim/update_form.h"

#include <algorithm>
#include <vector>

#include "penstock/comm/compressed.h"
#include "penstock/kernels/onebit.h"
#include "penstock/optim/onebit_steps.h"

namespace penstock::optim {

namespace {

using Average = plan::UpdateForm::Average;

constexpr int64_t kMostSketches = 64;
constexpr int64_t kFloatBytes = 4, kDoubleBytes = 8;

// Where gradients are not reduced.
Average average_of(const config::TrainOptions& train, int64_t step, bool is_apart) {
  if (train.optimizer != "zeroone-adam") {
    return Average::Momentum;
  }
  if (step <= var_freeze_step(train)) {
    return Average::Gradients;
  }
  if (!replicas_meet(train, step)) {
    return Average::None;
  }
  return is_apart ? Average::Weights : Average::Momentum;
}

bool reduces_gradients(const config::TrainOptions& train, int64_t step) {
  if (!train.is_one_bit()) {
    return true;
  }
  return train.optimizer == "zeroone-adam" ? updates_variance(train, step)
                                           : step <= freeze_step(train);
}

// What a rank sends where all join what they have shards of: the chunks of the others, then its own
// to each (comm/compressed.h).
int64_t join_bytes(int64_t total, int32_t rank, int32_t ranks) {
  const int64_t own = total * (rank + 1) / ranks - total * rank / ranks;
  return total - own + own * (ranks - 1);
}

// The rank's parameters that learn, by their places in its flat buffers.
std::vector<comm::Stretch> stretches_of(const plan::Inventory& inventory) {
  std::vector<comm::Stretch> stretches;
  int64_t first = 0;
  for (size_t unit = 0; unit < inventory.units.size(); ++unit) {
    const plan::UnitStock& here = inventory.units[unit];
    const std::vector<plan::ParameterSize>& parameters = inventory.sizes[unit].parameters;
    const bool moves = here.is_here && !inventory.sizes[unit].unit.is_frozen;
    for (size_t i = 0; moves && i < parameters.size(); ++i) {
      stretches.push_back({first + here.layout.offsets[i], parameters[i].count});
    }
    first += here.layout.elements;
  }
  std::sort(stretches.begin(), stretches.end(), [](const auto& a, const auto& b) {
    return a.first < b.first;
  });
  return stretches;
}

}  // namespace

plan::UpdateForm update_form(const config::TrainOptions& train,
                             program::Shard shard,
                             int32_t replicas,
                             const UpdateState& state) {
  plan::UpdateForm form;
  if (replicas == 1) {
    return form;
  }
  const int64_t step = state.steps_done + 1;
  const bool is_sharded = shard != program::Shard::None;
  form.reduces = reduces_gradients(train, step);
  if (!form.reduces) {
    const int64_t freeze =
        train.optimizer == "zeroone-adam" ? var_freeze_step(train) : freeze_step(train);
    form.average = average_of(train, step, state.is_apart);
    form.fills_momentum = is_sharded && step == freeze + 1;
    form.fills_alive = is_sharded && form.average != Average::None && !state.knows_alive;
  }
  if (is_sharded && train.optimizer == "lamb") {
    form.lengths = 2;  // of weights and of the update
  }
  if (is_sharded && train.optimizer == "onebit-lamb") {
    // Likewise; then of the weights, and once of the variance as it froze.
    form.lengths = form.reduces || form.fills_momentum ? 2 : 1;
  }
  return form;
}

int64_t num_sketches(int64_t count) {
  return std::min(kMostSketches, (count + plan::kSliceGrain - 1) / plan::kSliceGrain);
}

plan::ExchangeBytes exchange_bytes(const plan::Inventory& inventory) {
  const int32_t replica = inventory.place.replica, replicas = inventory.place.replicas;
  const std::vector<comm::Stretch> parameters = stretches_of(inventory);
  const int64_t others = replicas - 1;
  const int64_t elements = inventory.state_elements({"", plan::StateSize::Layout::Whole});
  plan::ExchangeBytes bytes{
      .momentum = join_bytes(kFloatBytes * elements, replica, replicas),
      .alive = join_bytes(kernels::bit_bytes(elements), replica, replicas),
      .average = comm::SignBlocks(parameters).sent_bytes(replica, replicas),
      .lengths = 2 * kDoubleBytes * static_cast<int64_t>(parameters.size()) * others};
  for (const comm::Stretch& parameter : parameters) {
    bytes.sketches += kDoubleBytes * num_sketches(parameter.count) * others;
  }
  for (const plan::UnitSize& unit : inventory.sizes) {
    const bool is_added_up = unit.unit.is_shared && !unit.unit.is_frozen;
    bytes.shared.push_back(is_added_up ? kFloatBytes * unit.parameters.front().count : 0);
  }
  return bytes;
}

}  // namespace penstock::optim
