#include "penstock/optim/optimizer.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/kernels/optimizers.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/gpu_optimizer.h"

namespace penstock::optim {

namespace {

constexpr int64_t kGrain = 1 << 15;      // elements per piece of work
constexpr int64_t kNormBlock = 1 << 16;  // elements per partial sum of the norm

StateBuffer zeros_like_parameters(const std::string& name, const model::Parameters& parameters) {
  return {name, at::zeros_like(parameters.flat_weights())};
}

struct Range {
  int64_t first = 0, count = 0;
};

// The sum of squares of each range. Blocks of fixed size begin with a range, so that neither threads
// nor neighbours change its bits.
Squares squares_of(const float* values, const std::vector<Range>& ranges) {
  struct Block {
    size_t range;
    Range part;
  };
  std::vector<Block> blocks;
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (int64_t done = 0; done < ranges[i].count; done += kNormBlock) {
      blocks.push_back({i, {ranges[i].first + done, std::min(kNormBlock, ranges[i].count - done)}});
    }
  }
  std::vector<double> sums(blocks.size());
  at::parallel_for(0, static_cast<int64_t>(blocks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const Range& part = blocks[static_cast<size_t>(at)].part;
      sums[static_cast<size_t>(at)] = kernels::sum_of_squares(values + part.first, part.count);
    }
  });
  Squares squares(ranges.size(), 0);
  for (size_t at = 0; at < blocks.size(); ++at) {
    squares[blocks[at].range] += sums[at];
  }
  return squares;
}

// Calls update(parameter, first element, range) for pieces of every parameter, over all threads.
template <typename Update>
void for_each_range(model::Parameters& parameters, double gradient_scale, const Update& update) {
  float* weights = parameters.flat_weights().data_ptr<float>();
  const float* gradients = parameters.flat_gradients().data_ptr<float>();
  for (const model::Parameter& parameter : parameters.all()) {
    at::parallel_for(0, parameter.spec.count(), kGrain, [&](int64_t begin, int64_t end) {
      const int64_t first = parameter.offset + begin;
      update(
          parameter,
          first,
          kernels::UpdateRange{
              weights + first, gradients + first, end - begin, static_cast<float>(gradient_scale)});
    });
  }
}

}  // namespace

kernels::AdamSettings adam_settings(const config::TrainOptions& train,
                                    const Rate& rate,
                                    int64_t step) {
  const double beta1 = rate.momentum.value_or(train.beta1);
  const double t = static_cast<double>(step);
  return {.lr = static_cast<float>(rate.lr),
          .beta1 = static_cast<float>(beta1),
          .beta2 = static_cast<float>(train.beta2),
          .epsilon = static_cast<float>(train.epsilon),
          .weight_decay = static_cast<float>(train.weight_decay),
          .one_minus_beta1 = static_cast<float>(1 - beta1),
          .one_minus_beta2 = static_cast<float>(1 - train.beta2),
          .bias_correction1 = static_cast<float>(1 - std::pow(beta1, t)),
          .bias_correction2 = static_cast<float>(1 - std::pow(train.beta2, t))};
}

namespace {

class AdamW final : public Optimizer {
 public:
  AdamW(const config::TrainOptions& train, const model::Parameters& parameters) : train_(train) {
    state_ = {zeros_like_parameters("exp_avg", parameters),
              zeros_like_parameters("exp_avg_sq", parameters)};
  }

  void step(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    const kernels::AdamSettings with_decay = adam_settings(train_, rate, ++steps_done_);
    kernels::AdamSettings without_decay = with_decay;
    without_decay.weight_decay = 0;
    float* mean = state_[0].flat.data_ptr<float>();
    float* mean_square = state_[1].flat.data_ptr<float>();
    for_each_range(
        parameters,
        gradient_scale,
        [&](const model::Parameter& parameter, int64_t first, const kernels::UpdateRange& range) {
          kernels::adamw_update(range,
                                mean + first,
                                mean_square + first,
                                parameter.spec.has_weight_decay ? with_decay : without_decay);
        });
  }

 private:
  config::TrainOptions train_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(const config::TrainOptions& train, const model::Parameters& parameters) : train_(train) {
    if (train.momentum > 0) {
      state_ = {zeros_like_parameters("momentum_buffer", parameters)};
    }
  }

  void step(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    const bool is_first_step = steps_done_++ == 0;
    // A schedule moves momentum only where there is some.
    const double momentum = state_.empty() ? 0 : rate.momentum.value_or(train_.momentum);
    float* buffer = state_.empty() ? nullptr : state_[0].flat.data_ptr<float>();
    for_each_range(
        parameters,
        gradient_scale,
        [&](const model::Parameter& parameter, int64_t first, const kernels::UpdateRange& range) {
          const double weight_decay = parameter.spec.has_weight_decay ? train_.weight_decay : 0;
          kernels::sgd_update(range,
                              buffer == nullptr ? nullptr : buffer + first,
                              {static_cast<float>(rate.lr),
                               static_cast<float>(momentum),
                               static_cast<float>(weight_decay),
                               train_.nesterov,
                               is_first_step});
        });
  }

 private:
  config::TrainOptions train_;
};

// You et al., 2020: Adam's direction, its length set per tensor to that of the weights. Tensors
// without weight decay (biases, norms) keep a ratio of 1, as is usual.
class Lamb final : public Optimizer {
 public:
  Lamb(const config::TrainOptions& train, const model::Parameters& parameters) : train_(train) {
    state_ = {zeros_like_parameters("exp_avg", parameters),
              zeros_like_parameters("exp_avg_sq", parameters)};
    int64_t largest = 0;
    for (const model::Parameter& parameter : parameters.all()) {
      largest = std::max(largest, parameter.spec.count());
    }
    update_ = at::zeros({largest}, at::kFloat);
  }

  void step(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    const kernels::AdamSettings settings = adam_settings(train_, rate, ++steps_done_);
    for (const model::Parameter& parameter : parameters.all()) {
      update_tensor(parameters, parameter, settings, gradient_scale);
    }
  }

 private:
  void update_tensor(model::Parameters& parameters,
                     const model::Parameter& parameter,
                     kernels::AdamSettings settings,
                     double gradient_scale) {
    const int64_t count = parameter.spec.count();
    const bool is_scaled = parameter.spec.has_weight_decay;
    settings.weight_decay = is_scaled ? settings.weight_decay : 0;
    float* weights = parameters.flat_weights().data_ptr<float>() + parameter.offset;
    const float* gradients = parameters.flat_gradients().data_ptr<float>() + parameter.offset;
    float* mean = state_[0].flat.data_ptr<float>() + parameter.offset;
    float* mean_square = state_[1].flat.data_ptr<float>() + parameter.offset;
    float* update = update_.data_ptr<float>();
    // Fixed pieces, so that the norms do not depend on the number of threads.
    const int64_t pieces = (count + kGrain - 1) / kGrain;
    std::vector<kernels::LambNorms> norms(static_cast<size_t>(pieces));
    at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        const int64_t first = piece * kGrain;
        const int64_t size = std::min(kGrain, count - first);
        norms[static_cast<size_t>(piece)] = kernels::lamb_direction(
            {weights + first, gradients + first, size, static_cast<float>(gradient_scale)},
            mean + first,
            mean_square + first,
            update + first,
            settings);
      }
    });
    kernels::LambNorms total{};
    for (const kernels::LambNorms& piece : norms) {
      total.weights += piece.weights;
      total.update += piece.update;
    }
    const bool has_ratio = is_scaled && total.weights > 0 && total.update > 0;
    const double ratio = has_ratio ? std::sqrt(total.weights / total.update) : 1;
    const float scaled_rate = static_cast<float>(static_cast<double>(settings.lr) * ratio);
    at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
      kernels::lamb_apply(weights + begin, update + begin, end - begin, scaled_rate);
    });
  }

  config::TrainOptions train_;
  at::Tensor update_;  // the direction of the tensor at hand
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const config::TrainOptions& train,
                                          const model::Parameters& parameters) {
  if (parameters.device().is_gpu()) {
    return make_gpu_optimizer(train, parameters);
  }
  if (train.optimizer == "adamw") {
    return std::make_unique<AdamW>(train, parameters);
  }
  if (train.optimizer == "sgd") {
    return std::make_unique<Sgd>(train, parameters);
  }
  PENSTOCK_CHECK(train.optimizer == "lamb", "no optimizer ", train.optimizer);
  return std::make_unique<Lamb>(train, parameters);
}

void Optimizer::update(model::Parameters& parameters, const UpdateSettings& settings) {
  const Squares own = gradient_squares(parameters);
  const double norm = norm_of(settings.gather ? settings.gather(own) : own) / settings.loss_scale;
  updated_ = {norm, std::isfinite(norm)};
  if (updated_.was_applied) {
    step(parameters, settings.rate, clip_scale(norm, settings.clip) / settings.loss_scale);
    parameters.refresh_compute();
  }
}

Updated Optimizer::updated() {
  return updated_;
}

double flat_norm(const at::Tensor& flat) {
  if (flat.is_cuda()) {
    return at::linalg_vector_norm(flat).item<double>();
  }
  return norm_of(squares_of(flat.data_ptr<float>(), {{0, flat.numel()}}));
}

Squares gradient_squares(const model::Parameters& parameters) {
  std::vector<Range> ranges;
  for (const model::Parameter& parameter : parameters.all()) {
    ranges.push_back({parameter.offset, parameter.spec.count()});
  }
  return squares_of(parameters.flat_gradients().data_ptr<float>(), ranges);
}

double norm_of(const Squares& squares) {
  double total = 0;
  for (const double sum : squares) {
    total += sum;
  }
  return std::sqrt(total);
}

double gradient_norm(const model::Parameters& parameters) {
  return norm_of(gradient_squares(parameters));
}

double clip_scale(double norm, double clip) {
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

}  // namespace penstock::optim
