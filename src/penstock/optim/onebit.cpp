#include "penstock/optim/onebit.h"

#include <cmath>
#include <span>
#include <string>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/philox.h"
#include "penstock/comm/group.h"
#include "penstock/kernels/onebit.h"
#include "penstock/optim/gpu_optimizer.h"
#include "penstock/optim/onebit_steps.h"
#include "penstock/optim/optimizer_size.h"

namespace penstock::optim {

namespace {

// Of the replicas' group; 0 is that of gradients and weights (run/replicas.cpp).
constexpr int64_t kChannel = 1;

// By their places in the flat buffers.
std::vector<size_t> in_order(const model::Parameters& parameters) {
  std::vector<size_t> order(parameters.all().size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return parameters.all()[a].offset < parameters.all()[b].offset;
  });
  return order;
}

comm::SignBlocks blocks_of(const model::Parameters& parameters) {
  std::vector<comm::Stretch> tensors;
  for (const size_t i : in_order(parameters)) {
    const model::Parameter& parameter = parameters.all()[i];
    tensors.push_back({parameter.offset, parameter.spec.count()});
  }
  return comm::SignBlocks(tensors);
}

// Where the server error of this replica's blocks is, and whose it is. Blocks of one parameter
// follow each other without a gap but for its last.
std::vector<model::Segment> server_stretches(const model::Parameters& parameters,
                                             const comm::SignBlocks& blocks) {
  const auto own = blocks.of_rank(parameters.replica(), parameters.replicas());
  std::vector<model::Segment> stretches;
  int64_t block = 0;
  for (const size_t i : in_order(parameters)) {
    const model::Parameter& parameter = parameters.all()[i];
    const int64_t count = parameter.spec.count();
    const int64_t end = block + sign_blocks(count);
    const int64_t first_block = std::max(block, own.begin);
    if (first_block < std::min(end, own.end)) {
      const int64_t first = (first_block - block) * kernels::kSignBlock;
      const int64_t last = std::min(count, (std::min(end, own.end) - block) * kernels::kSignBlock);
      stretches.push_back(
          {i, first, last - first, (first_block - own.begin) * kernels::kSignBlock});
    }
    block = end;
  }
  return stretches;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

OneBit::OneBit(const config::TrainOptions& train, const model::Parameters& parameters)
    : train_(train),
      num_replicas_(parameters.replicas()),
      elements_(parameters.flat_gradients().numel()),
      blocks_(blocks_of(parameters)) {
  state_ = make_state(train, parameters);
  state_[kMean].is_whole = true;
  state_[kWorkerError].is_per_replica = true;
  state_[kServerError].stretches = server_stretches(parameters, blocks_);
  alive_ = at::zeros({kernels::bit_bytes(elements_)}, at::kByte);
  staging_ = at::zeros({onebit_staging_bytes(num_replicas_)}, at::kByte);
}

size_t OneBit::num_pieces(const model::Parameters& parameters) {
  size_t pieces = 0;
  for (const model::Segment& segment : parameters.segments()) {
    pieces += static_cast<size_t>((segment.count + plan::kSliceGrain - 1) / plan::kSliceGrain);
  }
  return pieces;
}

kernels::AdamSettings OneBit::settings_for(const Rate& rate, int64_t variance_updates) const {
  kernels::AdamSettings settings = adam_settings(train_, rate, steps_done_ + 1);
  settings.bias_correction2 =
      static_cast<float>(1 - std::pow(train_.beta2, static_cast<double>(variance_updates)));
  return settings;
}

kernels::AdamSettings OneBit::without_decay(kernels::AdamSettings settings) {
  settings.weight_decay = 0;
  return settings;
}

float OneBit::own_scale(double gradient_scale) const {
  return static_cast<float>(gradient_scale * num_replicas_);
}

comm::CompressedReduce& OneBit::reduce() {
  if (reduce_ == nullptr) {
    PENSTOCK_CHECK(replicas_ != nullptr && replicas_->size() == num_replicas_,
                   "an optimizer for ",
                   num_replicas_,
                   " replicas does not know them");
    reduce_ = std::make_unique<comm::CompressedReduce>(*replicas_, kChannel, bytes_of(staging_));
  }
  return *reduce_;
}

void OneBit::average(model::Parameters& parameters, float* values) {
  if (alive_since_ != steps_done_) {
    find_alive(parameters);
  }
  alive_since_ = steps_done_ + 1;
  const comm::CompressedReduce::Vector vector{
      values, flat(kWorkerError), flat(kServerError), alive_.const_data_ptr<uint8_t>()};
  if (num_replicas_ == 1) {
    comm::CompressedReduce::average_alone(blocks_, vector);
    return;
  }
  reduce().average(blocks_, vector, [] { return std::string("signs of the update"); });
}

void OneBit::find_alive(const model::Parameters& parameters) {
  alive_.zero_();
  for (const model::Segment& segment : parameters.segments()) {
    kernels::mark_alive(flat(kMeanSquare) + segment.offset,
                        segment.count,
                        alive_.data_ptr<uint8_t>(),
                        parameters.all()[segment.parameter].offset + segment.first);
  }
  if (parameters.shard() != program::Shard::None) {
    reduce().join(bytes_of(alive_), [] { return std::string("which elements have a variance"); });
  }
}

void OneBit::complete_momentum(model::Parameters& parameters) {
  if (parameters.shard() == program::Shard::None) {
    return;
  }
  // Zeros between the segments, then each replica's segments into them.
  std::vector<comm::Stretch> own;
  for (const model::Segment& segment : parameters.segments()) {
    own.push_back({parameters.all()[segment.parameter].offset + segment.first, segment.count});
  }
  own.push_back({elements_, 0});
  std::sort(own.begin(), own.end(), [](const comm::Stretch& a, const comm::Stretch& b) {
    return a.first < b.first;
  });
  int64_t end = 0;
  for (const comm::Stretch& stretch : own) {
    std::fill(flat(kMean) + end, flat(kMean) + stretch.first, 0.0f);
    end = stretch.first + stretch.count;
  }
  reduce().join(bytes_of(state_[kMean].flat), [] { return std::string("the momentum"); });
}

void OneBit::forget_errors() {
  state_[kWorkerError].flat.zero_();
  state_[kServerError].flat.zero_();
}

std::vector<double> OneBit::gather(const std::vector<double>& own) {
  if (num_replicas_ == 1) {
    return own;
  }
  reduce();  // says if the replicas are not known
  return replicas_->all_gather(own, [] { return std::string("norms of the replicas"); });
}

namespace {

// Sums that stand for a parameter's gradient: more of them tell its norm better.
constexpr int64_t kMostSketches = 64;

int64_t num_pieces_of(int64_t count) {
  return (count + plan::kSliceGrain - 1) / plan::kSliceGrain;
}

}  // namespace

// The squares of the gradient cannot be had from those of the replicas' own, which are noisier.
// Sums with random signs add up: the squares of their totals are the gradient's, on average. Other
// signs in every step, so that no direction is always taken for longer than it is.
Squares OneBit::estimate_squares(const model::Parameters& parameters) {
  const float* gradients = parameters.flat_gradients().const_data_ptr<float>();
  std::vector<double> own;
  std::vector<size_t> begins;
  for (const model::Parameter& parameter : parameters.all()) {
    const int64_t count = parameter.spec.count();
    const int64_t pieces = num_pieces_of(count);
    std::vector<double> sums(static_cast<size_t>(pieces));
    const uint64_t seed =
        mix_bits(static_cast<uint64_t>(steps_done_)) ^ hash_name(parameter.spec.name);
    at::parallel_for(0, pieces, kGrain / plan::kSliceGrain, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        const int64_t first = piece * plan::kSliceGrain;
        sums[static_cast<size_t>(piece)] =
            kernels::sum_with_signs(gradients + parameter.offset + first,
                                    std::min(plan::kSliceGrain, count - first),
                                    mix_bits(seed ^ mix_bits(static_cast<uint64_t>(piece))));
      }
    });
    begins.push_back(own.size());
    own.resize(own.size() + static_cast<size_t>(std::min(pieces, kMostSketches)));
    for (size_t piece = 0; piece < sums.size(); ++piece) {
      own[begins.back() + piece % kMostSketches] += sums[piece];
    }
  }
  const std::vector<double> all = gather(own);
  std::vector<double> totals(own.size());
  for (size_t i = 0; i < all.size(); ++i) {
    totals[i % own.size()] += all[i];
  }
  begins.push_back(own.size());
  Squares squares(parameters.all().size());
  for (size_t i = 0; i < squares.size(); ++i) {
    for (size_t at = begins[i]; at < begins[i + 1]; ++at) {
      squares[i].add(totals[at] * totals[at]);
    }
  }
  return squares;
}

void OneBit::take_squares(model::Parameters& parameters, const UpdateSettings& settings, bool) {
  settings_ = settings;
  const bool is_estimate = num_replicas_ > 1 && !wants_reduced_gradients();
  squares_ = is_estimate ? estimate_squares(parameters) : gradient_squares(parameters);
  // Where the state is sharded, what replicas have of a parameter is added up: one has all of it.
  counts_elsewhere_ =
      is_estimate && parameters.shard() != program::Shard::None && parameters.replica() != 0;
}

Squares OneBit::own_squares() {
  return counts_elsewhere_ ? Squares(squares_.size()) : squares_;
}

void OneBit::move_as_adamw(model::Parameters& parameters,
                           const kernels::AdamSettings& settings,
                           double gradient_scale) {
  for_each_piece(parameters, [&](const Piece& piece, size_t) {
    kernels::adamw_update(
        {piece.weights, piece.gradients, piece.count, static_cast<float>(gradient_scale)},
        piece.mean,
        piece.mean_square,
        piece.has_weight_decay ? settings : without_decay(settings));
  });
}

void OneBit::take_in_gradients(model::Parameters& parameters,
                               const kernels::AdamSettings& settings,
                               double gradient_scale) {
  const float* gradients = parameters.flat_gradients().const_data_ptr<float>();
  for_each_range([&](int64_t first, int64_t count) {
    kernels::blend_mean(flat(kMean) + first,
                        gradients + first,
                        count,
                        own_scale(gradient_scale),
                        settings.one_minus_beta1);
  });
}

FreezingOneBit::FreezingOneBit(const config::TrainOptions& train,
                               const model::Parameters& parameters)
    : OneBit(train, parameters), freeze_(freeze_step(train)) {}

void FreezingOneBit::step(model::Parameters& parameters, const Rate& rate, double gradient_scale) {
  if (steps_done_ < freeze_) {
    warm_up(parameters, rate, gradient_scale);
  } else {
    move_frozen(parameters, rate, gradient_scale);
  }
  ++steps_done_;
}

void FreezingOneBit::average_momentum(model::Parameters& parameters,
                                      const kernels::AdamSettings& settings,
                                      double gradient_scale) {
  take_in_gradients(parameters, settings, gradient_scale);
  average(parameters, flat(kMean));
}

}  // namespace penstock::optim
