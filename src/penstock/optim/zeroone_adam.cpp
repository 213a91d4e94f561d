// 0/1 Adam (Lu et al., 2022). First the variance is updated in some steps, from gradients in full
// precision, and in the others gradients go between replicas as signs. Then the variance stays, and
// replicas take steps by themselves; when they meet, what goes between them as signs is the mean
// momentum that has moved each.
#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/kernels/onebit.h"
#include "penstock/optim/onebit.h"
#include "penstock/optim/onebit_steps.h"

namespace penstock::optim {

namespace {

class ZeroOneAdam final : public OneBit {
 public:
  ZeroOneAdam(const config::TrainOptions& train, const model::Parameters& parameters)
      : OneBit(train, parameters), freeze_(var_freeze_step(train)) {
    if (num_replicas() > 1 && train.local_step_clipper > 1) {
      PENSTOCK_CHECK(parameters.shard() == program::Shard::None, "local steps of pieces");
      start_ = at::zeros_like(parameters.flat_weights());
    }
  }

  bool wants_reduced_gradients() const override {
    return updates_variance(train_, steps_done_ + 1);
  }

  bool replicas_agree() const override { return !are_apart_; }

  void step(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    if (updates_variance(train_, steps_done_ + 1)) {
      move_as_adamw(parameters, settings_now(rate), gradient_scale);
    } else if (steps_done_ < freeze_) {
      move_by_signs(parameters, rate, gradient_scale);
    } else {
      move_frozen(parameters, rate, gradient_scale);
    }
    ++steps_done_;
  }

 private:
  kernels::AdamSettings settings_now(const Rate& rate) const {
    return settings_for(rate, variance_updates(train_, steps_done_ + 1));
  }

  void move_by_signs(model::Parameters& parameters, const Rate& rate, double gradient_scale) {
    const kernels::AdamSettings settings = settings_now(rate);
    at::Tensor gradients = parameters.flat_gradients();
    gradients.mul_(own_scale(gradient_scale));
    average(parameters, gradients.data_ptr<float>());
    for_each_piece(parameters, [&](const Piece& piece, size_t) {
      kernels::blend_mean(piece.mean, piece.gradients, piece.count, 1, settings.one_minus_beta1);
      move_piece(piece, settings);
    });
  }

  void move_frozen(model::Parameters& parameters, const Rate& rate, double gradient_scale) {
    if (steps_done_ == freeze_) {
      complete_momentum(parameters);
      forget_errors();  // they were those of gradients
    }
    const kernels::AdamSettings settings = settings_now(rate);
    take_in_gradients(parameters, settings, gradient_scale);
    const bool meets = num_replicas() == 1 || replicas_meet(train_, steps_done_ + 1);
    // An interval of one step: the momentum that moves the replica is at hand.
    if (meets && !are_apart_) {
      average(parameters, flat(kMean));
      for_each_piece(parameters, [&](const Piece& piece, size_t) { move_piece(piece, settings); });
      return;
    }
    if (!are_apart_) {
      start_.copy_(parameters.flat_weights());
      rate_sum_ = 0;
      decay_product_ = 1;
    }
    rate_sum_ += static_cast<double>(settings.lr) / static_cast<double>(settings.bias_correction1);
    decay_product_ *=
        1 - static_cast<double>(settings.lr) * static_cast<double>(settings.weight_decay);
    for_each_piece(parameters, [&](const Piece& piece, size_t) {
      kernels::frozen_adam_update(
          piece.weights, piece.mean, piece.mean_square, piece.count, without_decay(settings));
    });
    if (meets) {
      meet(parameters, settings);
    }
    are_apart_ = !meets;
  }

  // Replicas come to one point. Where nothing has moved them their momentum is averaged all the
  // same.
  void meet(model::Parameters& parameters, const kernels::AdamSettings& settings) {
    if (rate_sum_ == 0) {
      average(parameters, flat(kMean));
      return;
    }
    const kernels::LocalSteps decayed{static_cast<float>(rate_sum_),
                                      static_cast<float>(decay_product_)};
    const kernels::LocalSteps undecayed{static_cast<float>(rate_sum_), 1};
    const float* start = start_.const_data_ptr<float>();
    const auto start_of = [&](const Piece& piece) { return start + piece.offset; };
    for_each_piece(parameters, [&](const Piece& piece, size_t) {
      kernels::momentum_of_local_steps(
          piece.weights, start_of(piece), piece.mean_square, piece.count, settings, decayed);
    });
    average(parameters, parameters.flat_weights().data_ptr<float>());
    for_each_piece(parameters, [&](const Piece& piece, size_t) {
      kernels::move_together(piece.weights,
                             piece.mean,
                             start_of(piece),
                             piece.mean_square,
                             piece.count,
                             settings,
                             piece.has_weight_decay ? decayed : undecayed);
    });
  }

  static void move_piece(const Piece& piece, const kernels::AdamSettings& settings) {
    kernels::frozen_adam_update(piece.weights,
                                piece.mean,
                                piece.mean_square,
                                piece.count,
                                piece.has_weight_decay ? settings : without_decay(settings));
  }

  const int64_t freeze_;
  // Have taken steps by themselves since they met, or since all began with the same weights.
  bool are_apart_ = false;
  at::Tensor start_;  // the weights then
  double rate_sum_ = 0;
  double decay_product_ = 1;
};

}  // namespace

std::unique_ptr<Optimizer> make_zeroone_adam(const config::TrainOptions& train,
                                             const model::Parameters& parameters) {
  return std::make_unique<ZeroOneAdam>(train, parameters);
}

}  // namespace penstock::optim
