// 1-bit LAMB (after Li et al., 2021): LAMB until the variance is known well enough. From then on
// the replicas' momentum goes between them 1-bit compressed, and what LAMB needs of a gradient in
// full precision is had otherwise: inside a tensor the variance stays, its size follows the
// gradient's estimated norm, and trust ratios divide by the mean norm of the updates before.
#include <cmath>
#include <numeric>

#include <ATen/ATen.h>

#include "penstock/kernels/onebit.h"
#include "penstock/optim/onebit.h"
#include "penstock/optim/onebit_steps.h"

namespace penstock::optim {

namespace {

constexpr double kLeastRatio = 0.01, kMostRatio = 10;
constexpr double kNormDecay = 0.9;  // of the mean norm of updates

class OneBitLamb final : public FreezingOneBit {
 public:
  OneBitLamb(const config::TrainOptions& train, const model::Parameters& parameters)
      : FreezingOneBit(train, parameters) {
    for (size_t buffer = kNumBuffers; buffer < state_.size(); ++buffer) {
      state_[buffer].is_per_parameter = true;
    }
  }

 private:
  // Of each parameter: the mean norm of warm-up's updates; the sum of its variance, without the
  // correction, when that froze; and what that would be now, with it: a running mean of the
  // gradient's square.
  static constexpr size_t kUpdateNorm = kNumBuffers, kFrozenSquare = kNumBuffers + 1,
                          kGradientSquare = kNumBuffers + 2;

  // How a tensor is moved.
  struct Move {
    kernels::AdamSettings settings;
    double ratio;
  };

  float* begin_step(model::Parameters& parameters,
                    const Rate& rate,
                    double gradient_scale) override {
    if (!is_frozen()) {
      find_directions(parameters, settings_for(rate, steps_done_ + 1), gradient_scale);
      return nullptr;
    }
    sums_ = sum_by_parameter(parameters, [](const Chunk& chunk) {
      return kernels::sum_of_squares(chunk.weights, chunk.count);
    });
    if (freezes_now()) {
      const std::vector<ExactSum> variances = sum_by_parameter(parameters, [](const Chunk& chunk) {
        return std::accumulate(chunk.mean_square, chunk.mean_square + chunk.count, 0.0);
      });
      sums_.insert(sums_.end(), variances.begin(), variances.end());
    }
    take_in_gradients(parameters, settings_for(rate, freeze_), gradient_scale);
    return flat(kMean);
  }

  void end_step(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    if (is_frozen()) {
      move_frozen(parameters, settings_for(rate, freeze_), gradient_scale);
    } else {
      move_as_lamb(parameters, settings_for(rate, steps_done_ + 1));
    }
  }

  // The first step after the variance froze.
  bool freezes_now() const { return steps_done_ == freeze_; }

  // Momentum and variance take in the gradients; the sums are of weights, then of the update.
  void find_directions(model::Parameters& parameters,
                       const kernels::AdamSettings& settings,
                       double gradient_scale) {
    std::vector<kernels::LambNorms> parts(num_chunks(parameters));
    std::vector<size_t> owners(parts.size());
    for_each_chunk(parameters, [&](const Chunk& chunk, size_t number) {
      float direction[plan::kSliceGrain];
      parts[number] = kernels::lamb_direction(
          {chunk.weights, chunk.gradients, chunk.count, static_cast<float>(gradient_scale)},
          chunk.mean,
          chunk.mean_square,
          direction,
          chunk.has_weight_decay ? settings : without_decay(settings));
      owners[number] = chunk.parameter;
    });
    const size_t parameter_count = parameters.learning().size();
    sums_.assign(2 * parameter_count, {});
    for (size_t i = 0; i < parts.size(); ++i) {
      sums_[owners[i]].add(parts[i].weights);
      sums_[parameter_count + owners[i]].add(parts[i].update);
    }
  }

  void move_as_lamb(model::Parameters& parameters, const kernels::AdamSettings& settings) {
    const size_t parameter_count = parameters.learning().size();
    std::vector<Move> moves;
    for (size_t i = 0; i < parameter_count; ++i) {
      const double update = std::sqrt(sums_[parameter_count + i].value());
      blend(flat(kUpdateNorm)[i], update, kNormDecay);
      moves.push_back({settings, trust_ratio(parameters.all()[i], sums_[i], update)});
    }
    apply(parameters, moves);
  }

  void move_frozen(model::Parameters& parameters,
                   const kernels::AdamSettings& settings,
                   double gradient_scale) {
    if (freezes_now()) {
      freeze(parameters.learning().size(), static_cast<double>(settings.bias_correction2));
    }
    std::vector<Move> moves;
    for (size_t i = 0; i < parameters.learning().size(); ++i) {
      blend(flat(kGradientSquare)[i],
            gradient_scale * gradient_scale * squares()[i].value(),
            train_.beta2);
      moves.push_back(
          {with_variance_of_now(settings, i),
           trust_ratio(parameters.all()[i], sums_[i], static_cast<double>(flat(kUpdateNorm)[i]))});
    }
    apply(parameters, moves);
  }

  void freeze(size_t parameter_count, double correction) {
    for (size_t i = 0; i < parameter_count; ++i) {
      const double variance = sums_[parameter_count + i].value();
      flat(kFrozenSquare)[i] = static_cast<float>(variance);
      flat(kGradientSquare)[i] = static_cast<float>(variance / correction);
      // A running mean that began with 0.
      flat(kUpdateNorm)[i] /=
          static_cast<float>(1 - std::pow(kNormDecay, static_cast<double>(freeze_)));
    }
  }

  // The variance as it froze, corrected so that its sum is that of now.
  kernels::AdamSettings with_variance_of_now(kernels::AdamSettings settings, size_t parameter) {
    const float frozen = flat(kFrozenSquare)[parameter], now = flat(kGradientSquare)[parameter];
    if (frozen > 0 && now > 0) {
      settings.bias_correction2 = frozen / now;
    }
    return settings;
  }

  static double trust_ratio(const model::Parameter& parameter,
                            const ExactSum& weight_squares,
                            double update_norm) {
    const double weights = std::sqrt(weight_squares.value());
    return parameter.spec.has_weight_decay && weights > 0 && update_norm > 0
               ? std::clamp(weights / update_norm, kLeastRatio, kMostRatio)
               : 1;
  }

  static void blend(float& mean, double value, double keep) {
    mean = static_cast<float>(keep * static_cast<double>(mean) + (1 - keep) * value);
  }

  void apply(model::Parameters& parameters, const std::vector<Move>& moves) {
    for_each_chunk(parameters, [&](const Chunk& chunk, size_t) {
      const auto& [settings, ratio] = moves[chunk.parameter];
      kernels::lamb_move(chunk.weights,
                         chunk.mean,
                         chunk.mean_square,
                         chunk.count,
                         chunk.has_weight_decay ? settings : without_decay(settings),
                         static_cast<float>(static_cast<double>(settings.lr) * ratio));
    });
  }

  // Of what `value` says of each chunk of this rank.
  template <typename Value>
  std::vector<ExactSum> sum_by_parameter(model::Parameters& parameters, const Value& value) {
    std::vector<double> parts(num_chunks(parameters));
    std::vector<size_t> owners(parts.size());
    for_each_chunk(parameters, [&](const Chunk& chunk, size_t number) {
      parts[number] = value(chunk);
      owners[number] = chunk.parameter;
    });
    std::vector<ExactSum> sums(parameters.learning().size());
    for (size_t i = 0; i < parts.size(); ++i) {
      sums[owners[i]].add(parts[i]);
    }
    return sums;
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_onebit_lamb(const config::TrainOptions& train,
                                            const model::Parameters& parameters) {
  return std::make_unique<OneBitLamb>(train, parameters);
}

}  // namespace penstock::optim
