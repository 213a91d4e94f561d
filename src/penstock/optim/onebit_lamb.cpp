// 1-bit LAMB (after Li et al., 2021): LAMB until the variance is known well enough. From then on
// the replicas' momentum goes between them as signs, and what LAMB needs of a gradient in full
// precision is had otherwise: inside a tensor the variance stays, its size follows the gradient's
// estimated norm, and trust ratios divide by the mean norm of the updates before.
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

  void warm_up(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    const kernels::AdamSettings settings = settings_for(rate, steps_done_ + 1);
    std::vector<kernels::LambNorms> parts(num_pieces(parameters));
    std::vector<size_t> owners(parts.size());
    for_each_piece(parameters, [&](const Piece& piece, size_t number) {
      float direction[plan::kSliceGrain];
      parts[number] = kernels::lamb_direction(
          {piece.weights, piece.gradients, piece.count, static_cast<float>(gradient_scale)},
          piece.mean,
          piece.mean_square,
          direction,
          piece.has_weight_decay ? settings : without_decay(settings));
      owners[number] = piece.parameter;
    });
    std::vector<ExactSum> norms(2 * parameters.all().size());
    for (size_t i = 0; i < parts.size(); ++i) {
      norms[2 * owners[i]].add(parts[i].weights);
      norms[2 * owners[i] + 1].add(parts[i].update);
    }
    add_over_replicas(parameters, norms);
    std::vector<Move> moves;
    for (size_t i = 0; i < parameters.all().size(); ++i) {
      const double update = std::sqrt(norms[2 * i + 1].value());
      blend(flat(kUpdateNorm)[i], update, kNormDecay);
      moves.push_back({settings, trust_ratio(parameters.all()[i], norms[2 * i], update)});
    }
    apply(parameters, moves);
  }

  void move_frozen(model::Parameters& parameters,
                   const Rate& rate,
                   double gradient_scale) override {
    const kernels::AdamSettings settings = settings_for(rate, freeze_);
    if (steps_done_ == freeze_) {
      complete_momentum(parameters);
      freeze(parameters, static_cast<double>(settings.bias_correction2));
    }
    average_momentum(parameters, settings, gradient_scale);
    const std::vector<ExactSum> weights = sum_by_parameter(parameters, [](const Piece& piece) {
      return kernels::sum_of_squares(piece.weights, piece.count);
    });
    std::vector<Move> moves;
    for (size_t i = 0; i < parameters.all().size(); ++i) {
      blend(flat(kGradientSquare)[i],
            gradient_scale * gradient_scale * squares()[i].value(),
            train_.beta2);
      moves.push_back(
          {with_variance_of_now(settings, i),
           trust_ratio(
               parameters.all()[i], weights[i], static_cast<double>(flat(kUpdateNorm)[i]))});
    }
    apply(parameters, moves);
  }

  void freeze(model::Parameters& parameters, double correction) {
    const std::vector<ExactSum> variances = sum_by_parameter(parameters, [](const Piece& piece) {
      return std::accumulate(piece.mean_square, piece.mean_square + piece.count, 0.0);
    });
    for (size_t i = 0; i < variances.size(); ++i) {
      flat(kFrozenSquare)[i] = static_cast<float>(variances[i].value());
      flat(kGradientSquare)[i] = static_cast<float>(variances[i].value() / correction);
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
    for_each_piece(parameters, [&](const Piece& piece, size_t) {
      const auto& [settings, ratio] = moves[piece.parameter];
      kernels::lamb_move(piece.weights,
                         piece.mean,
                         piece.mean_square,
                         piece.count,
                         piece.has_weight_decay ? settings : without_decay(settings),
                         static_cast<float>(static_cast<double>(settings.lr) * ratio));
    });
  }

  // Of what `value` says of each piece.
  template <typename Value>
  std::vector<ExactSum> sum_by_parameter(model::Parameters& parameters, const Value& value) {
    std::vector<double> parts(num_pieces(parameters));
    std::vector<size_t> owners(parts.size());
    for_each_piece(parameters, [&](const Piece& piece, size_t number) {
      parts[number] = value(piece);
      owners[number] = piece.parameter;
    });
    std::vector<ExactSum> sums(parameters.all().size());
    for (size_t i = 0; i < parts.size(); ++i) {
      sums[owners[i]].add(parts[i]);
    }
    add_over_replicas(parameters, sums);
    return sums;
  }

  // Where the state is sharded, replicas have pieces of a tensor.
  void add_over_replicas(const model::Parameters& parameters, std::vector<ExactSum>& sums) {
    if (parameters.shard() != program::Shard::None) {
      sums = add_up(gather(halves_of(sums)), sums.size());
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_onebit_lamb(const config::TrainOptions& train,
                                            const model::Parameters& parameters) {
  return std::make_unique<OneBitLamb>(train, parameters);
}

}  // namespace penstock::optim
