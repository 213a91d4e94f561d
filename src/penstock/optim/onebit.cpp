#include "penstock/optim/onebit.h"

#include <cmath>
#include <span>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/philox.h"
#include "penstock/comm/group.h"
#include "penstock/kernels/onebit.h"
#include "penstock/optim/gpu_optimizer.h"
#include "penstock/optim/onebit_steps.h"
#include "penstock/optim/optimizer_size.h"
#include "penstock/optim/update_form.h"

namespace penstock::optim {

namespace {

// Of the replicas' group; 0 is that of gradients and weights (run/replicas.cpp).
constexpr int64_t kChannel = 1;

// Those that learn, by their places in the flat buffers.
std::vector<size_t> in_order(const model::Parameters& parameters) {
  std::vector<size_t> order(parameters.learning().size());
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
      shard_(parameters.shard()),
      elements_(parameters.flat_gradients().numel()),
      blocks_(blocks_of(parameters)) {
  state_ = make_state(train, parameters);
  state_[kMean].is_whole = true;
  state_[kWorkerError].is_per_replica = true;
  state_[kServerError].stretches = server_stretches(parameters, blocks_);
  alive_ = at::zeros({kernels::bit_bytes(elements_)}, at::kByte);
  staging_ = at::zeros({onebit_staging_bytes(num_replicas_)}, at::kByte);
}

size_t OneBit::num_chunks(const model::Parameters& parameters) {
  size_t chunks = 0;
  for (const model::Segment& segment : parameters.segments()) {
    chunks += static_cast<size_t>((segment.count + plan::kSliceGrain - 1) / plan::kSliceGrain);
  }
  return chunks;
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

plan::UpdateForm OneBit::next_form() const {
  return update_form(train_,
                     shard_,
                     num_replicas_,
                     {.steps_done = steps_done_,
                      .is_apart = !replicas_agree(),
                      .knows_alive = alive_since_ == steps_done_});
}

comm::CompressedReduce& OneBit::reduce_over(comm::Group& replicas) {
  if (reduce_ == nullptr) {
    PENSTOCK_CHECK(replicas.size() == num_replicas_,
                   "an optimizer for ",
                   num_replicas_,
                   " replicas among ",
                   replicas.size());
    reduce_ = std::make_unique<comm::CompressedReduce>(replicas, kChannel, bytes_of(staging_));
  }
  return *reduce_;
}

void OneBit::average(float* values, comm::Group* replicas) {
  const comm::CompressedReduce::Vector vector{
      values, flat(kWorkerError), flat(kServerError), alive_.const_data_ptr<uint8_t>()};
  if (replicas == nullptr) {
    comm::CompressedReduce::average_alone(blocks_, vector);
    return;
  }
  reduce_over(*replicas).average(
      blocks_, vector, [] { return std::string("the 1-bit compressed update"); });
}

void OneBit::find_alive(const model::Parameters& parameters) {
  alive_.zero_();
  for (const model::Segment& segment : parameters.segments()) {
    kernels::mark_alive(flat(kMeanSquare) + segment.offset,
                        segment.count,
                        alive_.data_ptr<uint8_t>(),
                        parameters.all()[segment.parameter].offset + segment.first);
  }
  alive_since_ = steps_done_;
}

void OneBit::fill_state(model::Parameters& parameters, comm::Group& replicas) {
  comm::CompressedReduce& reduce = reduce_over(replicas);
  if (form_.fills_momentum) {
    complete_momentum(parameters, reduce);
  }
  if (form_.fills_alive) {
    find_alive(parameters);
    reduce.join(bytes_of(alive_), [] { return std::string("which elements have a variance"); });
  }
}

void OneBit::complete_momentum(model::Parameters& parameters, comm::CompressedReduce& reduce) {
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
  reduce.join(bytes_of(state_[kMean].flat), [] { return std::string("the momentum"); });
}

void OneBit::forget_errors() {
  state_[kWorkerError].flat.zero_();
  state_[kServerError].flat.zero_();
}

// Where gradients were reduced, and where there is one replica.
void OneBit::take_squares(model::Parameters& parameters, const UpdateSettings& settings, bool) {
  settings_ = settings;
  form_ = next_form();
  PENSTOCK_CHECK(form_.reduces,
                 "a program reduces gradients whose average is to be 1-bit compressed");
  squares_ = gradient_squares(parameters);
  counts_elsewhere_ = false;
}

// The squares of the gradient cannot be had from those of the replicas' own, which are noisier.
// Sums with random signs add up: the squares of their totals are the gradient's, on average. Other
// signs in every step, so that no direction is always taken for longer than it is.
std::vector<double> OneBit::take_sketches(model::Parameters& parameters,
                                          const UpdateSettings& settings) {
  settings_ = settings;
  form_ = next_form();
  PENSTOCK_CHECK(!form_.reduces, "a program does not reduce gradients that are to be reduced");
  const float* gradients = parameters.flat_gradients().const_data_ptr<float>();
  std::vector<double> own;
  for (const model::Parameter& parameter : parameters.learning()) {
    const int64_t count = parameter.spec.count();
    const int64_t chunks = (count + plan::kSliceGrain - 1) / plan::kSliceGrain;
    std::vector<double> sums(static_cast<size_t>(chunks));
    const uint64_t seed =
        mix_bits(static_cast<uint64_t>(steps_done_)) ^ hash_name(parameter.spec.name);
    at::parallel_for(0, chunks, kGrain / plan::kSliceGrain, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t first = chunk * plan::kSliceGrain;
        sums[static_cast<size_t>(chunk)] =
            kernels::sum_with_signs(gradients + parameter.offset + first,
                                    std::min(plan::kSliceGrain, count - first),
                                    mix_bits(seed ^ mix_bits(static_cast<uint64_t>(chunk))));
      }
    });
    const auto sketches = static_cast<size_t>(num_sketches(count));
    const size_t begin = own.size();
    own.resize(begin + sketches);
    for (size_t chunk = 0; chunk < sums.size(); ++chunk) {
      own[begin + chunk % sketches] += sums[chunk];
    }
  }
  return own;
}

void OneBit::estimate_squares(model::Parameters& parameters, const std::vector<double>& sketches) {
  const size_t own = sketches.size() / static_cast<size_t>(num_replicas_);
  std::vector<double> totals(own);
  for (size_t i = 0; i < sketches.size(); ++i) {
    totals[i % own] += sketches[i];
  }
  squares_.assign(parameters.learning().size(), {});
  size_t at = 0;
  for (size_t i = 0; i < squares_.size(); ++i) {
    const size_t end = at + static_cast<size_t>(num_sketches(parameters.all()[i].spec.count()));
    for (; at < end; ++at) {
      squares_[i].add(totals[at] * totals[at]);
    }
  }
  // Where the state is sharded, what replicas have of a parameter is added up: one has all of it.
  counts_elsewhere_ = shard_ != program::Shard::None && parameters.replica() != 0;
}

Squares OneBit::own_squares() {
  return counts_elsewhere_ ? Squares(squares_.size()) : squares_;
}

void OneBit::move_as_adamw(model::Parameters& parameters,
                           const kernels::AdamSettings& settings,
                           double gradient_scale) {
  for_each_chunk(parameters, [&](const Chunk& chunk, size_t) {
    kernels::adamw_update(
        {chunk.weights, chunk.gradients, chunk.count, static_cast<float>(gradient_scale)},
        chunk.mean,
        chunk.mean_square,
        chunk.has_weight_decay ? settings : without_decay(settings));
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

std::vector<double> OneBit::prepare(model::Parameters& parameters) {
  sums_.assign(static_cast<size_t>(form_.lengths) * parameters.learning().size(), {});
  if (updated_.was_applied) {
    averaged_ = begin_step(parameters, settings_.rate, gradient_scale());
    is_prepared_ = true;
  }
  return form_.lengths > 0 ? halves_of(sums_) : std::vector<double>();
}

// A step that is not taken averages nothing, at no replica.
void OneBit::exchange(model::Parameters& parameters, comm::Group& replicas) {
  if (!is_prepared_) {
    return;
  }
  PENSTOCK_CHECK(averaged_ != nullptr, "an exchange of nothing");
  if (alive_since_ != steps_done_) {
    PENSTOCK_CHECK(shard_ == program::Shard::None, "nobody knows which elements have a variance");
    find_alive(parameters);
  }
  average(averaged_, &replicas);
  averaged_ = nullptr;
  alive_since_ = steps_done_ + 1;
}

void OneBit::take_lengths(const std::vector<double>& lengths) {
  sums_ = add_up(lengths, sums_.size());
}

void OneBit::step(model::Parameters& parameters, const Rate& rate, double gradient_scale) {
  if (!std::exchange(is_prepared_, false)) {
    averaged_ = begin_step(parameters, rate, gradient_scale);
    if (averaged_ != nullptr && num_replicas_ == 1) {
      if (alive_since_ != steps_done_) {
        find_alive(parameters);
      }
      average(std::exchange(averaged_, nullptr), nullptr);
      alive_since_ = steps_done_ + 1;
    }
  }
  PENSTOCK_CHECK(averaged_ == nullptr, "a program does not average what is to be averaged");
  end_step(parameters, rate, gradient_scale);
  ++steps_done_;
}

}  // namespace penstock::optim
