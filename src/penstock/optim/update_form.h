// Which exchanges an update has, and so which program a step runs: pure functions of the recipe, of
// where the replicas stand, and of the inventory. Programs are written by them and optimizers act by
// them.
#pragma once

#include <cstdint>

#include "penstock/config/recipe.h"
#include "penstock/plan/exchanges.h"
#include "penstock/plan/inventory.h"
#include "penstock/program/program.h"

namespace penstock::optim {

// Where an optimizer and its replicas stand before a step.
struct UpdateState {
  int64_t steps_done = 0;
  bool is_apart = false;     // replicas have moved by themselves since they last met
  bool knows_alive = false;  // which elements have a variance, at this step
};

// The one place that says what the next step exchanges.
plan::UpdateForm update_form(const config::TrainOptions& train,
                             program::Shard shard,
                             int32_t replicas,
                             const UpdateState& state);

// What a rank with this inventory sends in each exchange.
plan::ExchangeBytes exchange_bytes(const plan::Inventory& inventory);

// Sums with random signs that stand for the gradient of a parameter of so many elements: more of
// them tell its norm better.
int64_t num_sketches(int64_t count);

}  // namespace penstock::optim
