// Dynamic loss scaling for float16, whose smallest numbers (6e-8) swallow small gradients: the loss
// is multiplied by a scale before backward, the gradients are divided by it after. The scale grows
// while gradients stay finite and falls when they overflow; a step that overflowed is left out.
// Decides numbers only and knows no tensor. See docs/precision.md.
#pragma once

#include <cstdint>

#include "penstock/config/recipe.h"

namespace penstock::optim {

struct LossScaleOptions {
  double initial = 65536;
  double growth = 2;
  double backoff = 0.5;
  int64_t interval = 2000;  // clean steps in a row before the scale grows
  int64_t hysteresis = 2;   // overflows since it last grew before it falls
  double least = 1;
  double most = config::kLargestLossScale;
};

// What a checkpoint keeps.
struct LossScaleState {
  double scale = 1;
  int64_t clean_steps = 0;      // since the scale last grew and the last overflow
  int64_t hysteresis_left = 0;  // overflows until the scale falls; 0: used up, each lowers it

  bool operator==(const LossScaleState&) const = default;
};

// Whether any scaler could be in this state.
bool is_possible(const LossScaleState& state);

class LossScaler {
 public:
  // Overflows in a row at the least scale that make it is_stuck().
  static constexpr int64_t kOverflowsWhenStuck = 20;

  explicit LossScaler(const LossScaleOptions& options);

  double scale() const { return state_.scale; }

  // One of the two after each step, once it is known whether its gradients are finite.
  void step_was_clean();
  void step_overflowed();

  // Overflows go on although the scale cannot fall: the training diverged, and not for its scale.
  bool is_stuck() const { return overflows_at_least_ >= kOverflowsWhenStuck; }

  const LossScaleState& state() const { return state_; }

  // Goes on from a checkpoint, within the limits of these options where they have changed. The
  // count towards is_stuck() starts again.
  void set_state(const LossScaleState& state);

 private:
  LossScaleOptions options_;
  LossScaleState state_;
  int64_t overflows_at_least_ = 0;
};

LossScaleOptions loss_scale_options(const config::TrainOptions& train);

}  // namespace penstock::optim
