#include "penstock/train/check_ranks.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/interrupt.h"
#include "penstock/base/text.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/plan/plan.h"
#include "penstock/train/check_reference.h"
#include "penstock/train/check_side.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/ranks.h"

namespace penstock::train {

namespace {

// A layer may leave more beside a gradient than it sends to a peer, and a gradient that nobody waits
// for is not sent.
bool have_same_begin(const model::Tensors& made,
                     const std::vector<uint32_t>& expected,
                     bool was_received) {
  const std::vector<uint32_t> digests = digest_each(made);
  const size_t common = std::min(digests.size(), expected.size());
  for (size_t i = 0; i < common; ++i) {
    const bool was_not_sent = was_received && !made[i].defined();
    if (digests[i] != expected[i] && !was_not_sent) {
      return false;
    }
  }
  // Nothing travels between two layers where the first makes all for later ones.
  return common > 0 || (digests.empty() && expected.empty());
}

// What a receiver has wrong its sender may have, too: that one comes first.
struct Difference {
  size_t order = 0;
  bool was_received = false;
  std::string text;

  bool operator<(const Difference& other) const {
    return std::tie(order, was_received) < std::tie(other.order, other.was_received);
  }
};

// What a rank found in a step.
struct Found {
  std::optional<Difference> first;
  int64_t tensors = 0;
  int64_t peak_bytes = 0;
  double largest_difference = 0;  // of sums in another order

  void differ(Difference difference) {
    if (!first || difference < *first) {
      first = std::move(difference);
    }
  }
};

class RanksCheck {
 public:
  RanksCheck(const config::Recipe& recipe,
             const MakeChain& make_chain,
             const program::Program& planned,
             const run::Stages& stages,
             const program::Program& kept,
             const CheckOptions& options)
      : recipe_(recipe),
        make_chain_(make_chain),
        planned_(planned),
        stages_(stages),
        kept_(kept),
        options_(options),
        mesh_(plan::mesh_of(recipe.plan)),
        parts_(run::parts_of(stages, mesh_.pipeline)),
        reordering_(find_reordering(recipe, planned)),
        found_(planned.ranks.size()) {
    report_.rank_peak_bytes.resize(planned.ranks.size(), 0);
    for (size_t rank = 0; rank < planned.ranks.size(); ++rank) {
      aside_.push_back(&memory::make_account());
    }
    if (reordering_) {
      report_.reordered = reordering_->why;
      report_.allowed_difference = reordering_->allowed;
    }
  }

  CheckReport run() {
    run_ranks(recipe_, /*asked=*/0, [this](comm::Group& group) { run_rank(group); });
    report_.is_equal = report_.first_difference.empty() && report_.steps == options_.steps;
    return report_;
  }

 private:
  // A rank may be held to less than a chain of modules brings with it, which is no part of the step.
  model::Chain make_own_chain(const device::Device& device) const {
    const memory::AccountScope aside(device.is_gpu() ? device.account() : memory::make_account());
    return make_chain_(device);
  }

  // Rank 0 writes what all share while the others wait at the first barrier of a step; until the
  // next they read it, and write what they found, each its own.
  void run_rank(comm::Group& group) {
    const size_t rank = static_cast<size_t>(group.rank());
    const device::Device device = open_device(recipe_, group);
    const memory::AccountScope account(device.is_gpu() ? device.account()
                                                       : memory::current_account());
    // A GPU has one account for the rank and for what it is compared with.
    const memory::LimitScope limit(memory::current_account(),
                                   device.is_gpu() ? 0 : planned_.ranks[rank].limit_bytes);
    const int64_t opened_bytes = memory::usage().current_bytes;  // a GPU's workspaces, which count
    const model::Chain chain = make_own_chain(device);
    std::optional<Reference> reference;
    if (rank == 0) {
      reference.emplace(recipe_, chain, planned_, kept_, device);
      expected_ = &reference->expected();
    }
    const int64_t other_bytes = device.is_gpu() ? memory::usage().current_bytes - opened_bytes : 0;
    Side side(recipe_, chain, planned_, parts_, stages_.cuts, device, group);
    side.executor.watch([this, rank](const run::Made& made) { compare_made(made, rank); });
    while (prepare_step(reference, group)) {
      const memory::PeakMark mark;
      side.train(recipe_, batch_, report_.steps);
      found_[rank].peak_bytes = mark.peak_bytes() - other_bytes;
      compare_sums(side, rank);
      group.barrier([] { return std::string("the end of the step"); });
      finish_on_one_device(reference, side, group);
      compare_weights(side, rank);
      group.barrier([] { return std::string("the comparison of weights"); });
      if (reference) {
        finish_step();
      }
    }
  }

  // Whether there is one.
  bool prepare_step(std::optional<Reference>& reference, comm::Group& group) {
    if (reference) {
      has_step_ =
          report_.steps < options_.steps && report_.first_difference.empty() && !was_interrupted();
    }
    if (reference && has_step_) {
      batch_ = options_.batch(report_.steps);
      reference->accumulate(batch_, report_.steps);
      std::fill(found_.begin(), found_.end(), Found{});
      handed_over_.clear();
    }
    const PatientScope patience(group);  // one device takes as long as all ranks in turn
    group.barrier([] { return std::string("the same step on one device"); });
    return has_step_;
  }

  // Where sums have another order than one device's, it goes on with those of the ranks.
  void finish_on_one_device(std::optional<Reference>& reference, Side& side, comm::Group& group) {
    if (reordering_) {
      hand_over_gradients(side);
      group.barrier([] { return std::string("the gradients of all ranks"); });
    }
    if (reference) {
      reference->update(report_.steps);
    }
    const PatientScope patience(group);
    group.barrier([] { return std::string("the update on one device"); });
  }

  // Several ranks may have the same; one of them hands it over.
  void hand_over_gradients(const Side& side) {
    for (const model::Segment& segment : side.parameters.segments()) {
      const std::string& name = side.parameters.all()[segment.parameter].spec.name;
      const std::lock_guard lock(mutex_);
      if (handed_over_.insert({name, segment.first}).second) {
        expected_->parameters.at(name)
            .gradient.narrow(0, segment.first, segment.count)
            .copy_(side.parameters.own_gradients(segment));
      }
    }
  }

  int32_t replica_of(size_t rank) const {
    return mesh_.coordinate(static_cast<int32_t>(rank), comm::Axis::Data);
  }
  int32_t number_of(size_t rank, int32_t micro_batch) const {
    return replica_of(rank) * planned_.micro_batches + micro_batch;
  }

  void compare_made(const run::Made& made, size_t rank) {
    if (!is_compared(made.value)) {
      return;
    }
    Found& found = found_[rank];
    ++found.tensors;
    ValueKey key = key_of(made.value);
    std::get<2>(key) = number_of(rank, made.value.micro_batch);
    const auto expected = expected_->values.find(key);
    PENSTOCK_CHECK(expected != expected_->values.end(),
                   "one device does not make ",
                   value_text(planned_, made.value));
    const program::Instruction& instruction =
        planned_.ranks[rank].instructions[static_cast<size_t>(made.instruction)];
    const bool was_received = instruction.op == program::Op::Receive;
    if (have_same_begin(made.tensors, expected->second.digests, was_received)) {
      return;
    }
    found.differ({expected->second.order,
                  was_received,
                  cat(value_text(planned_, made.value),
                      ", made by instruction ",
                      made.instruction,
                      " of rank ",
                      rank,
                      " (",
                      program::describe(planned_, instruction),
                      ")")});
  }

  // Losses, and the gradients that the rank's update takes.
  void compare_sums(const Side& side, size_t rank) {
    Found& found = found_[rank];
    const int32_t stage = mesh_.coordinate(static_cast<int32_t>(rank), comm::Axis::Pipeline);
    const std::vector<double>& sums = side.executor.loss_sums();
    for (size_t i = 0; parts_[static_cast<size_t>(stage)].has_loss && i < sums.size(); ++i) {
      const auto number = static_cast<size_t>(number_of(rank, static_cast<int32_t>(i)));
      if (sums[i] != expected_->loss_sums[number]) {
        found.differ({expected_->loss_order, false, cat("the loss of rank ", rank)});
      }
    }
    for (const model::Segment& segment : side.parameters.segments()) {
      const std::string& name = side.parameters.all()[segment.parameter].spec.name;
      const Expected::Parameter& expected = expected_->parameters.at(name);
      ++found.tensors;
      if (!is_same_sum(side.parameters.own_gradients(segment),
                       expected.gradient.narrow(0, segment.first, segment.count),
                       rank)) {
        found.differ(
            {expected.gradient_order, false, cat("the gradient of ", name, " on rank ", rank)});
      }
    }
  }

  bool is_same_sum(const at::Tensor& sum, const at::Tensor& expected, size_t rank) {
    const memory::AccountScope scope(*aside_[rank]);  // comparing is no part of the step
    const at::Tensor own = sum.cpu();
    if (!reordering_ || at::equal(own, expected)) {
      return at::equal(own, expected);
    }
    const double difference =
        (own.to(at::kDouble) - expected.to(at::kDouble)).norm().item<double>() /
        expected_->gradient_norm;
    double& largest = found_[rank].largest_difference;
    largest = std::max(largest, difference);
    return difference <= reordering_->allowed;
  }

  // What the rank's update has moved, and what its layers see of what others have.
  void compare_weights(const Side& side, size_t rank) {
    Found& found = found_[rank];
    if (side.optimizer->updated().norm != expected_->norm) {
      found.differ({expected_->norm_order, false, cat("the norm of the gradients on rank ", rank)});
    }
    const std::vector<model::Parameter>& all = side.parameters.all();
    const auto compare = [&](size_t parameter, const at::Tensor& own, const at::Tensor& expected) {
      const std::string& name = all[parameter].spec.name;
      ++found.tensors;
      if (!at::equal(own.flatten().cpu(), expected)) {
        found.differ({expected_->parameters.at(name).weight_order,
                      false,
                      cat(name, " on rank ", rank, " after the optimizer's step")});
      }
    };
    for (const model::Segment& segment : side.parameters.held_segments()) {
      const at::Tensor& weight = expected_->parameters.at(all[segment.parameter].spec.name).weight;
      compare(segment.parameter,
              side.parameters.own_weights(segment),
              weight.narrow(0, segment.first, segment.count));
    }
    // Else it is what was compared above.
    const bool sees_others =
        planned_.shard != program::Shard::None || side.parameters.compute_type() != at::kFloat;
    for (size_t i = 0; sees_others && i < all.size(); ++i) {
      if (all[i].compute.defined()) {
        compare(i, all[i].compute, expected_->parameters.at(all[i].spec.name).compute);
      }
    }
    compare_states(side, rank);
  }

  void compare_states(const Side& side, size_t rank) {
    Found& found = found_[rank];
    for (const model::Parameters::StateTensors& state : side.parameters.states()) {
      for (size_t i = 0; i < state.names.size(); ++i) {
        const Expected::State& expected = expected_->states.at(state.names[i]);
        ++found.tensors;
        if (!at::equal(state.current[i], expected.tensor)) {
          found.differ(
              {expected.order, false, cat(state.names[i], " on rank ", rank, " after the step")});
        }
      }
    }
  }

  void finish_step() {
    Found all;
    for (size_t rank = 0; rank < found_.size(); ++rank) {
      const Found& found = found_[rank];
      report_.tensors += found.tensors;
      int64_t& peak = report_.rank_peak_bytes[rank];
      peak = std::max(peak, found.peak_bytes);
      report_.peak_bytes = std::max(report_.peak_bytes, peak);
      report_.largest_difference = std::max(report_.largest_difference, found.largest_difference);
      if (found.first) {
        all.differ(*found.first);
      }
    }
    report_.loss = expected_->loss;
    ++report_.steps;
    if (all.first) {
      report_.first_difference = cat(all.first->text, ", at step ", report_.steps);
    }
    if (options_.on_step) {
      options_.on_step(report_.steps);
    }
  }

  const config::Recipe& recipe_;
  const MakeChain& make_chain_;
  const program::Program& planned_;
  const run::Stages& stages_;
  const program::Program& kept_;
  const CheckOptions& options_;
  const comm::Mesh mesh_;
  const std::vector<model::Part> parts_;
  const std::optional<Reordering> reordering_;
  CheckReport report_;

  bool has_step_ = false;
  model::Fields batch_;
  Expected* expected_ = nullptr;
  std::vector<Found> found_;             // by rank
  std::vector<memory::Account*> aside_;  // likewise: for what comparing holds
  std::mutex mutex_;
  std::set<std::pair<std::string, int64_t>> handed_over_;  // parameter and first element
};

}  // namespace

CheckReport check_ranks(const config::Recipe& recipe,
                        const MakeChain& make_chain,
                        const program::Program& planned,
                        const run::Stages& stages,
                        const program::Program& kept,
                        const CheckOptions& options) {
  return RanksCheck(recipe, make_chain, planned, stages, kept, options).run();
}

}  // namespace penstock::train
