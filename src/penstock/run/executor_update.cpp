// The executor at an update: gradients are made complete, all ranks agree, and the weights move.
#include <algorithm>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/comm/channels.h"
#include "penstock/model/parameters.h"
#include "penstock/run/executor_step.h"

namespace penstock::run {

using program::Instruction;

namespace {

// Elements of a gradient that go between stages at once: what comes in needs room for so many, which
// plan/update.h counts (kStageExchangeBytes).
constexpr int64_t kAtOnce = int64_t{1} << 20;

}  // namespace

const UpdateSettings& Executor::settings_of(const Step& step) const {
  PENSTOCK_CHECK(step.updates_done < step.input.updates.size(),
                 "settings of ",
                 step.input.updates.size(),
                 " updates for more");
  return step.input.updates[step.updates_done];
}

void Executor::add(const Instruction& instruction, Step&) {
  parameters_.add_share(instruction.units[0], instruction.layer);
}

// Two stages have the unit: a table that embeds tokens and makes logits. a + b is b + a to the bit,
// so both get the same sum. Such a parameter is a unit by itself, and both have the same slices.
void Executor::reduce_over_stages(const Instruction& instruction, Step&) {
  const comm::RankGroup& stages = program_.groups[static_cast<size_t>(instruction.group)];
  const std::vector<int32_t> ranks = comm::members(program_.mesh, stages, group_->rank());
  PENSTOCK_CHECK(ranks.size() == 2, "a unit of ", ranks.size(), " stages");
  const int32_t peer = ranks[0] == group_->rank() ? ranks[1] : ranks[0];
  const int64_t channel = comm::shared_gradient_channel(chain_.size());
  const comm::What what = [&] { return describe(number_of(instruction)); };
  for (const at::Tensor& gradient :
       parameters_.shared_gradients(instruction.units[0], /*is_whole=*/has_unreduced_gradients_)) {
    const at::Tensor room = at::empty({std::min(kAtOnce, gradient.numel())}, gradient.options());
    for (int64_t first = 0; first < gradient.numel(); first += kAtOnce) {
      at::Tensor ours = gradient.narrow(0, first, std::min(kAtOnce, gradient.numel() - first));
      const at::Tensor theirs = room.narrow(0, 0, ours.numel());
      const std::unique_ptr<Sent> sent = transfers_->send(peer, channel, ours);
      transfers_->receive(peer, channel, theirs, what);
      transfers_->wait(*sent, what);
      ours.add_(theirs);
    }
  }
}

void Executor::sketch(const Instruction&, Step& step) {
  step.sums = step.stepper.take_sketches(parameters_, settings_of(step));
}

void Executor::squares(const Instruction&, Step& step) {
  if (has_unreduced_gradients_) {
    return step.stepper.estimate_squares(parameters_, step.sums);
  }
  step.stepper.take_squares(parameters_, settings_of(step), /*for_others=*/all_squares_ != nullptr);
}

// What belongs to no unit, for the optimizer: the squares of all ranks; of its replicas, state,
// sketches or lengths.
void Executor::gather_for_optimizer(const Instruction& instruction, Step& step) {
  const program::ValueKind made = value(instruction.makes[0]).kind;
  if (made == program::ValueKind::AllSquares) {
    return gather_squares(instruction, step);
  }
  if (made == program::ValueKind::Filled) {
    return step.stepper.fill_state(parameters_, replicas_->group());
  }
  step.sums =
      replicas_->group().all_gather(step.sums, [&] { return describe(number_of(instruction)); });
  if (made == program::ValueKind::AllLengths) {
    step.stepper.take_lengths(step.sums);
  }
}

void Executor::gather_squares(const Instruction& instruction, Step& step) {
  step.all_squares = all_squares_->gather(step.stepper.own_squares(),
                                          [&] { return describe(number_of(instruction)); });
}

void Executor::decide(const Instruction&, Step& step) {
  step.stepper.decide(all_squares_ == nullptr ? nullptr : &step.all_squares);
}

void Executor::prepare(const Instruction&, Step& step) {
  step.sums = step.stepper.prepare(parameters_);
}

void Executor::exchange(const Instruction&, Step& step) {
  step.stepper.exchange(parameters_, replicas_->group());
}

void Executor::move(const Instruction& instruction, Step& step) {
  PENSTOCK_CHECK(program_.units.empty() || instruction.updates.size() >= instruction.units.size(),
                 "a step of units that it does not change");
  step.stepper.move(parameters_);
  parameters_.commit_state();
  if (program_.updates > 1) {
    outcomes_.push_back(step.stepper.updated());
  }
  ++step.updates_done;
}

}  // namespace penstock::run
