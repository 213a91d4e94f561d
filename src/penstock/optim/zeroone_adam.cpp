// 0/1 Adam (Lu et al., 2022). First the variance is updated in some steps, from gradients in full
// precision, and in the others gradients go between replicas 1-bit compressed. Then the variance
// stays, and replicas take steps by themselves; when they meet, what goes between them, 1-bit
// compressed, is the mean momentum that has moved each.
#include <utility>

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
      PENSTOCK_CHECK(parameters.shard() == program::Shard::None, "local steps of shards");
      start_ = at::zeros_like(parameters.flat_gradients());
    }
  }

  bool replicas_agree() const override { return !are_apart_; }

 private:
  kernels::AdamSettings settings_now(const Rate& rate) const {
    return settings_for(rate, variance_updates(train_, steps_done_ + 1));
  }
  bool is_frozen() const { return steps_done_ >= freeze_; }
  bool meets_now() const { return num_replicas() == 1 || replicas_meet(train_, steps_done_ + 1); }

  float* begin_step(model::Parameters& parameters,
                    const Rate& rate,
                    double gradient_scale) override {
    if (updates_variance(train_, steps_done_ + 1)) {
      return nullptr;
    }
    if (!is_frozen()) {
      at::Tensor gradients = parameters.flat_gradients();
      gradients.mul_(own_scale(gradient_scale));
      return gradients.data_ptr<float>();
    }
    if (steps_done_ == freeze_) {
      forget_errors();  // they were those of gradients
    }
    const kernels::AdamSettings settings = settings_now(rate);
    take_in_gradients(parameters, settings, gradient_scale);
    // An interval of one step: the momentum that moves the replica is at hand.
    if (meets_now() && !are_apart_) {
      return flat(kMean);
    }
    move_alone(parameters, settings);
    return meets_now() ? momentum_to_meet(parameters, settings) : nullptr;
  }

  void end_step(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    const kernels::AdamSettings settings = settings_now(rate);
    if (updates_variance(train_, steps_done_ + 1)) {
      move_as_adamw(parameters, settings, gradient_scale);
    } else if (!is_frozen()) {
      for_each_chunk(parameters, [&](const Chunk& chunk, size_t) {
        kernels::blend_mean(chunk.mean, chunk.gradients, chunk.count, 1, settings.one_minus_beta1);
        move_chunk(chunk, settings);
      });
    } else if (!meets_now()) {
      are_apart_ = true;
    } else if (std::exchange(are_apart_, false)) {
      move_together(parameters, settings);
    } else {
      for_each_chunk(parameters, [&](const Chunk& chunk, size_t) { move_chunk(chunk, settings); });
    }
  }

  // A step of this replica by itself.
  void move_alone(model::Parameters& parameters, const kernels::AdamSettings& settings) {
    if (!are_apart_) {
      start_.copy_(parameters.flat_weights().narrow(0, 0, start_.numel()));
      rate_sum_ = 0;
      decay_product_ = 1;
    }
    rate_sum_ += static_cast<double>(settings.lr) / static_cast<double>(settings.bias_correction1);
    decay_product_ *=
        1 - static_cast<double>(settings.lr) * static_cast<double>(settings.weight_decay);
    for_each_chunk(parameters, [&](const Chunk& chunk, size_t) {
      kernels::frozen_adam_update(
          chunk.weights, chunk.mean, chunk.mean_square, chunk.count, without_decay(settings));
    });
  }

  // Replicas come to one point. The mean momentum that has moved the replica is in the place of its
  // weights; where nothing has moved them their momentum is averaged all the same.
  float* momentum_to_meet(model::Parameters& parameters, const kernels::AdamSettings& settings) {
    if (rate_sum_ == 0) {
      return flat(kMean);
    }
    for_each_chunk(parameters, [&](const Chunk& chunk, size_t) {
      kernels::momentum_of_local_steps(
          chunk.weights, start_of(chunk), chunk.mean_square, chunk.count, settings, local_steps());
    });
    return parameters.flat_weights().data_ptr<float>();
  }

  void move_together(model::Parameters& parameters, const kernels::AdamSettings& settings) {
    if (rate_sum_ == 0) {
      return;
    }
    const kernels::LocalSteps decayed = local_steps();
    const kernels::LocalSteps undecayed{decayed.rate, 1};
    for_each_chunk(parameters, [&](const Chunk& chunk, size_t) {
      kernels::move_together(chunk.weights,
                             chunk.mean,
                             start_of(chunk),
                             chunk.mean_square,
                             chunk.count,
                             settings,
                             chunk.has_weight_decay ? decayed : undecayed);
    });
  }

  kernels::LocalSteps local_steps() const {
    return {static_cast<float>(rate_sum_), static_cast<float>(decay_product_)};
  }
  const float* start_of(const Chunk& chunk) const {
    return start_.const_data_ptr<float>() + chunk.offset;
  }

  static void move_chunk(const Chunk& chunk, const kernels::AdamSettings& settings) {
    kernels::frozen_adam_update(chunk.weights,
                                chunk.mean,
                                chunk.mean_square,
                                chunk.count,
                                chunk.has_weight_decay ? settings : without_decay(settings));
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
