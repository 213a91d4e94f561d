#include "penstock/optim/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "penstock/base/error.h"

namespace penstock::optim {

bool is_possible(const LossScaleState& state) {
  return std::isfinite(state.scale) && state.scale > 0 && state.clean_steps >= 0 &&
         state.hysteresis_left >= 0;
}

LossScaler::LossScaler(const LossScaleOptions& options)
    : options_(options), state_{options.initial, 0, options.hysteresis} {
  PENSTOCK_CHECK(options.least > 0 && options.least <= options.initial &&
                     options.initial <= options.most && std::isfinite(options.most),
                 "loss scale ",
                 options.initial,
                 " in ",
                 options.least,
                 " to ",
                 options.most);
  PENSTOCK_CHECK(options.growth > 1, "growth ", options.growth);
  PENSTOCK_CHECK(options.backoff > 0 && options.backoff < 1, "backoff ", options.backoff);
  PENSTOCK_CHECK(options.interval >= 1, "interval ", options.interval);
  PENSTOCK_CHECK(options.hysteresis >= 1, "hysteresis ", options.hysteresis);
}

void LossScaler::step_was_clean() {
  overflows_at_least_ = 0;
  if (++state_.clean_steps >= options_.interval) {
    const double grown = std::min(state_.scale * options_.growth, options_.most);
    state_ = {grown, 0, options_.hysteresis};
  }
}

void LossScaler::step_overflowed() {
  if (state_.scale <= options_.least && state_.hysteresis_left == 0) {
    ++overflows_at_least_;  // until a clean step
  }
  state_.clean_steps = 0;
  state_.hysteresis_left = std::max<int64_t>(state_.hysteresis_left - 1, 0);
  if (state_.hysteresis_left == 0) {
    state_.scale = std::max(state_.scale * options_.backoff, options_.least);
  }
}

void LossScaler::set_state(const LossScaleState& state) {
  PENSTOCK_CHECK(is_possible(state),
                 "loss scale ",
                 state.scale,
                 ", clean steps ",
                 state.clean_steps,
                 ", hysteresis left ",
                 state.hysteresis_left);
  state_ = {std::clamp(state.scale, options_.least, options_.most),
            state.clean_steps,
            std::min(state.hysteresis_left, options_.hysteresis)};
  overflows_at_least_ = 0;
}

LossScaleOptions loss_scale_options(const config::TrainOptions& train) {
  return {.initial = train.loss_scale,
          .interval = train.loss_scale_interval,
          .hysteresis = train.loss_scale_hysteresis,
          .least = train.loss_scale_least};
}

}  // namespace penstock::optim
