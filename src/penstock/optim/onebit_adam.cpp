// 1-bit Adam (Tang et al., 2021): AdamW until the variance is known well enough; from then on it stays,
// and the replicas' momentum goes between them as signs.
#include "penstock/kernels/onebit.h"
#include "penstock/optim/onebit.h"
#include "penstock/optim/onebit_steps.h"

namespace penstock::optim {

namespace {

class OneBitAdam final : public OneBit {
 public:
  OneBitAdam(const config::TrainOptions& train, const model::Parameters& parameters)
      : OneBit(train, parameters), freeze_(freeze_step(train)) {}

  bool wants_reduced_gradients() const override { return steps_done_ < freeze_; }

  void step(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    if (steps_done_ < freeze_) {
      warm_up(parameters, rate, gradient_scale);
    } else {
      move_frozen(parameters, rate, gradient_scale);
    }
    ++steps_done_;
  }

 private:
  void warm_up(model::Parameters& parameters, const Rate& rate, double gradient_scale) {
    const kernels::AdamSettings settings = settings_for(rate, steps_done_ + 1);
    for_each_piece(parameters, [&](const Piece& piece, size_t) {
      kernels::adamw_update(
          {piece.weights, piece.gradients, piece.count, static_cast<float>(gradient_scale)},
          piece.mean,
          piece.mean_square,
          piece.has_weight_decay ? settings : without_decay(settings));
    });
  }

  void move_frozen(model::Parameters& parameters, const Rate& rate, double gradient_scale) {
    if (steps_done_ == freeze_) {
      complete_momentum(parameters);
    }
    const kernels::AdamSettings settings = settings_for(rate, freeze_);
    const float* gradients = parameters.flat_gradients().const_data_ptr<float>();
    for_each_range([&](int64_t first, int64_t count) {
      kernels::blend_mean(flat(kMean) + first,
                          gradients + first,
                          count,
                          own_scale(gradient_scale),
                          settings.one_minus_beta1);
    });
    average(parameters, flat(kMean));
    for_each_piece(parameters, [&](const Piece& piece, size_t) {
      kernels::frozen_adam_update(piece.weights,
                                  piece.mean,
                                  piece.mean_square,
                                  piece.count,
                                  piece.has_weight_decay ? settings : without_decay(settings));
    });
  }

  const int64_t freeze_;
};

}  // namespace

std::unique_ptr<Optimizer> make_onebit_adam(const config::TrainOptions& train,
                                            const model::Parameters& parameters) {
  return std::make_unique<OneBitAdam>(train, parameters);
}

}  // namespace penstock::optim
