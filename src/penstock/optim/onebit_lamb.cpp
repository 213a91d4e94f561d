// 1-bit LAMB (Li et al., 2021): LAMB until the variance is known well enough; from then on it stays, the
// replicas' momentum goes between them as signs, and the trust ratio of a tensor is its mean one of before,
// times a factor that follows how the variance would have gone on.
#include <cmath>

#include <ATen/ATen.h>

#include "penstock/kernels/onebit.h"
#include "penstock/optim/onebit.h"
#include "penstock/optim/onebit_steps.h"

namespace penstock::optim {

namespace {

constexpr double kLeastRatio = 0.01, kMostRatio = 10;  // of a step of warm-up
constexpr double kRatioDecay = 0.9;                    // of their mean
constexpr double kLeastFactor = 0.5, kMostFactor = 4;
constexpr double kMostFactorChange = 0.1;  // in one step, of what it was

class OneBitLamb final : public FreezingOneBit {
 public:
  OneBitLamb(const config::TrainOptions& train, const model::Parameters& parameters)
      : FreezingOneBit(train, parameters) {
    const auto per_parameter = [&](const char* name) {
      const auto count = static_cast<int64_t>(parameters.all().size());
      return StateBuffer{
          .name = name, .flat = at::zeros({count}, at::kFloat), .is_per_parameter = true};
    };
    state_.push_back(
        {.name = "exp_avg_sq_fresh", .flat = at::zeros({parameters.state_elements()}, at::kFloat)});
    state_.push_back(per_parameter("trust_ratio"));
    state_.push_back(per_parameter("trust_factor"));
  }

 private:
  static constexpr size_t kFresh = kNumBuffers, kRatio = kNumBuffers + 1, kFactor = kNumBuffers + 2;

  void warm_up(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    const kernels::AdamSettings settings = settings_for(rate, steps_done_ + 1);
    std::vector<kernels::LambNorms> parts(num_pieces(parameters));
    std::vector<size_t> owners(parts.size());
    for_each_piece(parameters, [&](const Piece& piece, size_t number) {
      float direction[model::kPieceGrain];
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
    std::vector<double> ratios(parameters.all().size(), 1);
    for (size_t i = 0; i < ratios.size(); ++i) {
      const double weights = norms[2 * i].value(), update = norms[2 * i + 1].value();
      if (parameters.all()[i].spec.has_weight_decay && weights > 0 && update > 0) {
        ratios[i] = std::clamp(std::sqrt(weights / update), kLeastRatio, kMostRatio);
      }
      float& mean = flat(kRatio)[i];
      mean = static_cast<float>(kRatioDecay * static_cast<double>(mean) +
                                (1 - kRatioDecay) * ratios[i]);
    }
    move(parameters, settings, ratios);
  }

  void move_frozen(model::Parameters& parameters,
                   const Rate& rate,
                   double gradient_scale) override {
    if (steps_done_ == freeze_) {
      complete_momentum(parameters);
      state_[kFresh].flat.copy_(state_[kMeanSquare].flat);
      state_[kFactor].flat.fill_(1);
    }
    const kernels::AdamSettings settings = settings_for(rate, freeze_);
    float* gradients = parameters.flat_gradients().data_ptr<float>();
    for_each_range([&](int64_t first, int64_t count) {
      kernels::blend_mean_and_keep(flat(kMean) + first,
                                   gradients + first,
                                   count,
                                   own_scale(gradient_scale),
                                   settings.one_minus_beta1);
    });
    average(parameters, flat(kMean));
    move(parameters, settings, frozen_ratios(parameters, settings));
  }

  // The gradients are the momentum of before.
  std::vector<double> frozen_ratios(model::Parameters& parameters,
                                    const kernels::AdamSettings& settings) {
    const auto correction =
        static_cast<float>(1 - std::pow(train_.beta2, static_cast<double>(steps_done_ + 1)));
    std::vector<kernels::FrozenLambSums> parts(num_pieces(parameters));
    std::vector<size_t> owners(parts.size());
    for_each_piece(parameters, [&](const Piece& piece, size_t number) {
      parts[number] =
          kernels::frozen_lamb_sums(piece.weights,
                                    piece.mean,
                                    piece.gradients,
                                    piece.mean_square,
                                    flat(kFresh) + piece.offset,
                                    piece.count,
                                    piece.has_weight_decay ? settings : without_decay(settings),
                                    correction);
      owners[number] = piece.parameter;
    });
    const size_t count = parameters.all().size();
    std::vector<double> shrunk(count);
    std::vector<ExactSum> squares(2 * count);
    for (size_t i = 0; i < parts.size(); ++i) {
      shrunk[owners[i]] = std::max(shrunk[owners[i]], parts[i].most_shrunk);
      squares[2 * owners[i]].add(parts[i].adam);
      squares[2 * owners[i] + 1].add(parts[i].update);
    }
    add_over_replicas(parameters, squares);
    most_over_replicas(parameters, shrunk);
    std::vector<double> ratios(count, 1);
    for (size_t i = 0; i < count; ++i) {
      if (parameters.all()[i].spec.has_weight_decay) {
        const double adam = squares[2 * i].value(), update = squares[2 * i + 1].value();
        ratios[i] = mean_ratio(i) * next_factor(i, shrunk[i], adam, update);
      }
    }
    return ratios;
  }

  double mean_ratio(size_t parameter) {
    return static_cast<double>(flat(kRatio)[parameter]) /
           (1 - std::pow(kRatioDecay, static_cast<double>(freeze_)));
  }

  // Weight decay knows of no variance: the more of the update it is, the nearer the factor is to 1.
  double next_factor(size_t parameter, double shrunk, double adam, double update) {
    const double share = update > adam ? std::sqrt(adam / update) : 1;
    const double last = static_cast<double>(flat(kFactor)[parameter]);
    double factor = std::clamp(shrunk * share + 1 - share, kLeastFactor, kMostFactor);
    factor = std::clamp(factor, last * (1 - kMostFactorChange), last * (1 + kMostFactorChange));
    flat(kFactor)[parameter] = static_cast<float>(factor);
    return factor;
  }

  void move(model::Parameters& parameters,
            const kernels::AdamSettings& settings,
            const std::vector<double>& ratios) {
    for_each_piece(parameters, [&](const Piece& piece, size_t) {
      kernels::lamb_move(
          piece.weights,
          piece.mean,
          piece.mean_square,
          piece.count,
          piece.has_weight_decay ? settings : without_decay(settings),
          static_cast<float>(static_cast<double>(settings.lr) * ratios[piece.parameter]));
    });
  }

  // Where the state is sharded, replicas have pieces of a tensor.
  void add_over_replicas(const model::Parameters& parameters, std::vector<ExactSum>& sums) {
    if (parameters.shard() == program::Shard::None) {
      return;
    }
    std::vector<double> own;
    for (const ExactSum& sum : sums) {
      own.insert(own.end(), {sum.high, sum.low});
    }
    const std::vector<double> all = gather(own);
    std::fill(sums.begin(), sums.end(), ExactSum());
    for (size_t i = 0; i < all.size(); i += 2) {
      sums[i % own.size() / 2].add(ExactSum(all[i], all[i + 1]));
    }
  }

  void most_over_replicas(const model::Parameters& parameters, std::vector<double>& values) {
    if (parameters.shard() == program::Shard::None) {
      return;
    }
    const std::vector<double> all = gather(values);
    for (size_t i = 0; i < all.size(); ++i) {
      values[i % values.size()] = std::max(values[i % values.size()], all[i]);
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_onebit_lamb(const config::TrainOptions& train,
                                            const model::Parameters& parameters) {
  return std::make_unique<OneBitLamb>(train, parameters);
}

}  // namespace penstock::optim
