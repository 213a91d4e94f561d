// What the 1-bit optimizers do in which step: pure functions of the recipe and the number of the
// step, so that a resumed run needs no more. Steps are counted from 1. See docs/onebit.md.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/config/recipe.h"

namespace penstock::optim {

// 1-bit Adam, 1-bit LAMB: the last step in full precision, and the last that updates the variance of
// each element.
int64_t freeze_step(const config::TrainOptions& train);

// 0/1 Adam: the last step that may update the variance.
int64_t var_freeze_step(const config::TrainOptions& train);
// Whether step `step` updates the variance, from a gradient in full precision; and how many have
// done so up to it. The first does; the steps between two updates double after every
// train.var_update_scaler of them.
bool updates_variance(const config::TrainOptions& train, int64_t step);
int64_t variance_updates(const config::TrainOptions& train, int64_t step);
// Whether replicas have the same weights after the step: they meet in every step up to
// var_freeze_step, then every 1, 2, 4, ... steps, up to train.local_step_clipper, doubled every
// train.local_step_scaler steps; and in the last step of all.
bool replicas_meet(const config::TrainOptions& train, int64_t step);

// Whether a state that one recipe has made in `steps` steps is one that another goes on from: it has
// updated the variance as often. If not, what the other is to set; empty: it goes on as it is.
std::string settings_to_go_on(const config::TrainOptions& before,
                              const config::TrainOptions& after,
                              int64_t steps);

}  // namespace penstock::optim
