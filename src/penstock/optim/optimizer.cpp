#include "penstock/optim/optimizer.h"

#include <cmath>
#include <span>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/base/units.h"
#include "penstock/kernels/optimizers.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/gpu_optimizer.h"
#include "penstock/optim/onebit.h"
#include "penstock/optim/optimizer_size.h"
#include "penstock/optim/update_form.h"

namespace penstock::optim {

namespace {

constexpr int64_t kGrain = 1 << 15;  // elements per piece of work
// Elements per partial sum of a norm. Ranks have whole blocks.
constexpr int64_t kNormBlock = plan::kSliceGrain;

struct Range {
  size_t sum = 0;  // that it is a part of
  const float* values = nullptr;
  int64_t count = 0;
};

// Sums of squares. Blocks of fixed size begin with a range, so that neither threads nor neighbours
// change the bits.
Squares squares_of(const std::vector<Range>& ranges, size_t sums) {
  std::vector<Range> blocks;
  for (const Range& range : ranges) {
    for (int64_t done = 0; done < range.count; done += kNormBlock) {
      blocks.push_back({range.sum, range.values + done, std::min(kNormBlock, range.count - done)});
    }
  }
  std::vector<double> parts(blocks.size());
  at::parallel_for(0, static_cast<int64_t>(blocks.size()), 16, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const Range& block = blocks[static_cast<size_t>(at)];
      parts[static_cast<size_t>(at)] = kernels::sum_of_squares(block.values, block.count);
    }
  });
  Squares squares(sums);
  for (size_t at = 0; at < blocks.size(); ++at) {
    squares[blocks[at].sum].add(parts[at]);
  }
  return squares;
}

// Calls update(parameter, first element of the state, range) for chunks of every segment, over all
// threads.
template <typename Update>
void for_each_range(model::Parameters& parameters, double gradient_scale, const Update& update) {
  for (const model::Segment& segment : parameters.segments()) {
    float* weights = parameters.own_weights(segment).data_ptr<float>();
    const float* gradients = parameters.own_gradients(segment).data_ptr<float>();
    at::parallel_for(0, segment.count, kGrain, [&](int64_t begin, int64_t end) {
      update(
          parameters.all()[segment.parameter],
          segment.offset + begin,
          kernels::UpdateRange{
              weights + begin, gradients + begin, end - begin, static_cast<float>(gradient_scale)});
    });
  }
}

// Of one parameter: the rate of its group.
float lr_of(const Rate& rate, const model::ParameterSpec& spec) {
  return static_cast<float>(rate.lr * spec.lr_scale);
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
    state_ = make_state(train, parameters);
  }

  void step(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    const kernels::AdamSettings usual = adam_settings(train_, rate, ++steps_done_);
    float* mean = state_[0].flat.data_ptr<float>();
    float* mean_square = state_[1].flat.data_ptr<float>();
    for_each_range(
        parameters,
        gradient_scale,
        [&](const model::Parameter& parameter, int64_t first, const kernels::UpdateRange& range) {
          kernels::AdamSettings settings = usual;
          settings.lr = lr_of(rate, parameter.spec);
          settings.weight_decay = parameter.spec.has_weight_decay ? usual.weight_decay : 0;
          kernels::adamw_update(range, mean + first, mean_square + first, settings);
        });
  }

 private:
  config::TrainOptions train_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(const config::TrainOptions& train, const model::Parameters& parameters) : train_(train) {
    state_ = make_state(train, parameters);
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
                              {lr_of(rate, parameter.spec),
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
    state_ = make_state(train, parameters);
    shard_ = parameters.shard();
    replicas_ = parameters.replicas();
    const int64_t bytes = optimizer_size(train, parameters.inventory()).workspaces.front().second;
    update_ = at::zeros({bytes / static_cast<int64_t>(sizeof(float))}, at::kFloat);
  }

  plan::UpdateForm next_form() const override {
    return update_form(train_, shard_, replicas_, {.steps_done = steps_done_});
  }

  // Where the rank has slices, the ratios need the other ranks' norms: all directions come first.
  std::vector<double> prepare(model::Parameters& parameters) override {
    norms_.assign(2 * parameters.learning().size(), {});
    if (updated_.was_applied) {
      find_directions(parameters, parameters.segments(), settings_now(), gradient_scale());
    }
    return halves_of(norms_);
  }
  void take_lengths(const std::vector<double>& lengths) override {
    norms_ = add_up(lengths, norms_.size());
    has_lengths_ = true;
  }

  // One tensor after the other where the rank has them whole.
  void step(model::Parameters& parameters, const Rate& rate, double gradient_scale) override {
    const kernels::AdamSettings settings = adam_settings(train_, rate, steps_done_ + 1);
    const std::vector<model::Segment>& segments = parameters.segments();
    if (shard_ != program::Shard::None) {
      PENSTOCK_CHECK(std::exchange(has_lengths_, false), "slices move without all norms");
      move_segments(parameters, segments, rate);
    } else {
      norms_.assign(2 * parameters.learning().size(), {});
      for (size_t i = 0; i < segments.size(); ++i) {
        const auto one = std::span(segments).subspan(i, 1);
        find_directions(parameters, one, settings, gradient_scale);
        move_segments(parameters, one, rate);
      }
    }
    ++steps_done_;
  }

 private:
  kernels::AdamSettings settings_now() const {
    return adam_settings(train_, settings_.rate, steps_done_ + 1);
  }

  // One after the other in the room that there is for directions.
  void find_directions(model::Parameters& parameters,
                       std::span<const model::Segment> segments,
                       const kernels::AdamSettings& settings,
                       double gradient_scale) {
    int64_t done = 0;
    for (const model::Segment& segment : segments) {
      find_direction(
          parameters, segment, settings, gradient_scale, done, &norms_[2 * segment.parameter]);
      done += segment.count;
    }
  }

  void move_segments(model::Parameters& parameters,
                     std::span<const model::Segment> segments,
                     const Rate& rate) {
    int64_t done = 0;
    for (const model::Segment& segment : segments) {
      const model::ParameterSpec& spec = parameters.all()[segment.parameter].spec;
      const double weights = norms_[2 * segment.parameter].value();
      const double update = norms_[2 * segment.parameter + 1].value();
      const double ratio =
          spec.has_weight_decay && weights > 0 && update > 0 ? std::sqrt(weights / update) : 1;
      const float scaled_rate = static_cast<float>(static_cast<double>(lr_of(rate, spec)) * ratio);
      float* values = parameters.own_weights(segment).data_ptr<float>();
      const float* direction = update_.data_ptr<float>() + done;
      at::parallel_for(0, segment.count, kGrain, [&](int64_t begin, int64_t end) {
        kernels::lamb_apply(values + begin, direction + begin, end - begin, scaled_rate);
      });
      done += segment.count;
    }
  }

  void find_direction(model::Parameters& parameters,
                      const model::Segment& segment,
                      kernels::AdamSettings settings,
                      double gradient_scale,
                      int64_t at,
                      ExactSum* norms) {
    if (!parameters.all()[segment.parameter].spec.has_weight_decay) {
      settings.weight_decay = 0;
    }
    float* weights = parameters.own_weights(segment).data_ptr<float>();
    const float* gradients = parameters.own_gradients(segment).data_ptr<float>();
    float* mean = state_[0].flat.data_ptr<float>() + segment.offset;
    float* mean_square = state_[1].flat.data_ptr<float>() + segment.offset;
    float* update = update_.data_ptr<float>() + at;
    // Fixed chunks, so that the norms depend neither on threads nor on ranks.
    const int64_t chunks = (segment.count + kNormBlock - 1) / kNormBlock;
    std::vector<kernels::LambNorms> parts(static_cast<size_t>(chunks));
    at::parallel_for(0, chunks, 8, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t first = chunk * kNormBlock;
        const int64_t size = std::min(kNormBlock, segment.count - first);
        parts[static_cast<size_t>(chunk)] = kernels::lamb_direction(
            {weights + first, gradients + first, size, static_cast<float>(gradient_scale)},
            mean + first,
            mean_square + first,
            update + first,
            settings);
      }
    });
    for (const kernels::LambNorms& part : parts) {
      norms[0].add(part.weights);
      norms[1].add(part.update);
    }
  }

  config::TrainOptions train_;
  program::Shard shard_ = program::Shard::None;
  int32_t replicas_ = 1;
  at::Tensor update_;            // the directions of the tensors at hand
  std::vector<ExactSum> norms_;  // squared, of weights and of the update, by parameter
  bool has_lengths_ = false;     // they are of all replicas
};

}  // namespace

void require_lr_scales(const config::TrainOptions& train,
                       const model::ParameterSpec& spec,
                       bool is_gpu) {
  if (spec.lr_scale == 1 || (!is_gpu && !train.is_one_bit())) {
    return;
  }
  throw ConfigError(cat("parameter ",
                        spec.name,
                        " has lr_scale = ",
                        format_number(spec.lr_scale),
                        "; train.optimizer = \"",
                        train.optimizer,
                        "\"",
                        is_gpu ? " on a GPU" : "",
                        " has one learning rate for all: ",
                        is_gpu ? "train on the CPU" : "take adamw, sgd or lamb"));
}

std::unique_ptr<Optimizer> make_optimizer(const config::TrainOptions& train,
                                          const model::Parameters& parameters) {
  for (const model::Parameter& parameter : parameters.all()) {
    require_lr_scales(train, parameter.spec, parameters.device().is_gpu());
  }
  if (parameters.device().is_gpu()) {
    return make_gpu_optimizer(train, parameters);
  }
  if (train.optimizer == "adamw") {
    return std::make_unique<AdamW>(train, parameters);
  }
  if (train.optimizer == "sgd") {
    return std::make_unique<Sgd>(train, parameters);
  }
  if (train.optimizer == "onebit-adam") {
    return make_onebit_adam(train, parameters);
  }
  if (train.optimizer == "zeroone-adam") {
    return make_zeroone_adam(train, parameters);
  }
  if (train.optimizer == "onebit-lamb") {
    return make_onebit_lamb(train, parameters);
  }
  PENSTOCK_CHECK(train.optimizer == "lamb", "no optimizer ", train.optimizer);
  return std::make_unique<Lamb>(train, parameters);
}

void Optimizer::take_squares(model::Parameters& parameters, const UpdateSettings& settings, bool) {
  settings_ = settings;
  squares_ = gradient_squares(parameters);
}

void Optimizer::decide(const Squares* all) {
  const double norm = norm_of(all == nullptr ? squares_ : *all) / settings_.loss_scale;
  updated_ = {norm, std::isfinite(norm)};
}

double Optimizer::gradient_scale() const {
  return clip_scale(updated_.norm, settings_.clip) / settings_.loss_scale;
}

void Optimizer::move(model::Parameters& parameters) {
  if (updated_.was_applied) {
    step(parameters, settings_.rate, gradient_scale());
    parameters.refresh_compute();
  }
}

void Optimizer::update(model::Parameters& parameters, const UpdateSettings& settings) {
  take_squares(parameters, settings, /*for_others=*/false);
  decide(nullptr);
  move(parameters);
}

std::vector<StateBuffer> make_state(const config::TrainOptions& train,
                                    const model::Parameters& parameters) {
  const at::TensorOptions options = at::TensorOptions(parameters.device().where).dtype(at::kFloat);
  std::vector<StateBuffer> state;
  for (const plan::StateSize& size : optimizer_size(train, parameters.inventory()).state) {
    state.push_back({size.name, at::zeros({parameters.inventory().state_elements(size)}, options)});
  }
  return state;
}

double flat_norm(const at::Tensor& flat) {
  if (flat.is_cuda()) {
    return at::linalg_vector_norm(flat).item<double>();
  }
  return norm_of(squares_of({{0, flat.data_ptr<float>(), flat.numel()}}, 1));
}

double weight_norm(const model::Parameters& parameters) {
  if (parameters.shard() == program::Shard::None) {
    return flat_norm(parameters.flat_weights());
  }
  std::vector<Range> ranges;
  for (const model::Segment& segment : parameters.held_segments()) {
    ranges.push_back({0, parameters.own_weights(segment).const_data_ptr<float>(), segment.count});
  }
  return norm_of(squares_of(ranges, 1));
}

Squares gradient_squares(const model::Parameters& parameters) {
  std::vector<Range> ranges;
  for (const model::Segment& segment : parameters.segments()) {
    ranges.push_back({segment.parameter,
                      parameters.own_gradients(segment).const_data_ptr<float>(),
                      segment.count});
  }
  return squares_of(ranges, parameters.learning().size());
}

double norm_of(const Squares& squares) {
  double total = 0;
  for (const ExactSum& sum : squares) {
    total += sum.value();
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
