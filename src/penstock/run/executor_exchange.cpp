// The executor between ranks: activations and gradients to and from other stages, weights and
// gradients of replicas.
#include <set>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/comm/channels.h"
#include "penstock/model/parameters.h"
#include "penstock/run/executor_step.h"

namespace penstock::run {

using program::Instruction;
using program::Op;
using program::ValueId;
using program::ValueKind;

int64_t channel_number(const program::Value& value, int64_t layers) {
  switch (value.kind) {
    case ValueKind::Gradient:
      return comm::gradient_channel(value.layer);
    case ValueKind::Carried:
      return comm::carried_channel(layers, value.element);
    case ValueKind::CarriedGradient:
      return comm::carried_gradient_channel(layers, value.element);
    default:
      return comm::activation_channel(value.layer);
  }
}

std::vector<Route> routes_of(const program::Program& program) {
  std::set<Route> routes;
  for (size_t from = 0; from < program.ranks.size(); ++from) {
    const program::RankProgram& rank = program.ranks[from];
    for (const Instruction& instruction : rank.instructions) {
      if (instruction.op == Op::Send) {
        routes.insert({static_cast<int32_t>(from),
                       instruction.resource.index,
                       channel_number(rank.value(instruction.reads[0]), program.loss_index())});
      }
    }
  }
  return {routes.begin(), routes.end()};
}

// What travels between ranks: the tensor itself, and what a layer hands on beside a gradient.
model::Shapes Executor::shapes_of(const program::Value& value) const {
  if (value.kind == ValueKind::Carried || value.kind == ValueKind::CarriedGradient) {
    return {shapes_->carried[static_cast<size_t>(value.element)]};
  }
  model::Shapes shapes = shapes_->edges[static_cast<size_t>(value.layer)];
  if (value.kind == ValueKind::Gradient && value.layer < chain_.size()) {
    for (const model::TensorShape& shape : chain_.layer(value.layer).beside_gradient()) {
      shapes.push_back(shape);
    }
  }
  return shapes;
}

void Executor::send(const Instruction& instruction, Step& step) {
  const ValueId id = instruction.reads[0];
  Slot& slot = step.slot(id);
  const model::Shapes shapes = shapes_of(value(id));
  const size_t count = shapes.size();
  PENSTOCK_CHECK(slot.tensors.size() >= count,
                 slot.tensors.size(),
                 " tensors to send, and the peer expects ",
                 count);
  const bool is_gradient = value(id).kind == ValueKind::Gradient;
  for (size_t i = 0; i < count; ++i) {
    at::Tensor& tensor = slot.tensors[i];
    if (is_gradient && !shapes[i].has_gradient) {
      continue;
    }
    if (!tensor
             .defined()) {  // nothing that the loss depends on: the peer waits for it all the same
      tensor = at::zeros(shapes[i].sizes,
                         at::TensorOptions(parameters_.device().where).dtype(shapes[i].type));
    }
    tensor = tensor.contiguous();  // in the slot: what is sent must live until free() has waited
    slot.sent.push_back(transfers_->send(
        instruction.resource.index, channel_number(value(id), chain_.size()), tensor));
  }
}

void Executor::receive(const Instruction& instruction, Step& step) {
  const ValueId id = instruction.makes[0];
  const int32_t index = number_of(instruction);
  const bool is_gradient = value(id).kind == ValueKind::Gradient;
  for (const model::TensorShape& shape : shapes_of(value(id))) {
    if (is_gradient && !shape.has_gradient) {
      step.slot(id).tensors.emplace_back();
      continue;
    }
    const at::Tensor tensor =
        at::empty(shape.sizes, at::TensorOptions(parameters_.device().where).dtype(shape.type));
    transfers_->receive(
        instruction.resource.index, channel_number(value(id), chain_.size()), tensor, [&] {
          return describe(index);
        });
    step.slot(id).tensors.push_back(tensor);
  }
}

// An element of the rank's list, not a copy of one.
int32_t Executor::number_of(const Instruction& instruction) const {
  return static_cast<int32_t>(&instruction - rank_.instructions.data());
}

int64_t Executor::sent_to_replicas() const {
  return replicas_ == nullptr ? 0 : replicas_->group().sent_bytes();
}

// The rank goes on; what uses its values waits for it.
void Executor::start_on_line(const Instruction& instruction, WorkPtr work, Step& step) {
  for (const auto* list : {&instruction.makes, &instruction.sets, &instruction.updates}) {
    for (const ValueId id : *list) {
      step.slot(id).change = work;
    }
  }
  for (const ValueId id : instruction.reads) {
    step.slot(id).use = work;
  }
  collectives_[static_cast<size_t>(number_of(instruction))] = std::move(work);
}

void Executor::gather(const Instruction& instruction, Step& step) {
  if (instruction.units.empty()) {
    return gather_for_optimizer(instruction, step);
  }
  const int32_t unit = instruction.units[0];
  const model::Tensors weights = parameters_.unit_weights(unit);
  if (!instruction.makes.empty()) {
    step.slot(instruction.makes[0]).tensors = weights;
  }
  start_on_line(instruction,
                replicas_->gather(parameters_, unit, weights, describe(number_of(instruction))),
                step);
}

// The sum over the replicas runs on a line while the rank computes (plan/shard.cpp writes it). The sum
// over the stages that have a tied table runs on compute (plan/update.cpp): executor_update.cpp.
void Executor::reduce(const Instruction& instruction, Step& step) {
  if (instruction.resource.kind != program::ResourceKind::Line) {
    return reduce_over_stages(instruction, step);
  }
  const int32_t unit = instruction.units[0];
  std::string what = describe(number_of(instruction));
  if (instruction.reads.empty()) {
    start_on_line(instruction,
                  replicas_->reduce(parameters_, unit, instruction.scatters, std::move(what)),
                  step);
    return;
  }
  const Slot& bucket = step.slot(instruction.reads[0]);
  start_on_line(instruction,
                replicas_->reduce_bucket(parameters_,
                                         {.unit = unit,
                                          .layer = bucket.layer,
                                          .gradient = bucket.tensors[0],
                                          .sets = !instruction.sets.empty()},
                                         std::move(what)),
                step);
}

void Executor::merge(const Instruction& instruction, Step& step) {
  start_on_line(
      instruction, replicas_->merge_state(parameters_, describe(number_of(instruction))), step);
}

// What it reads, changes or frees may be under way on a line; what it changes or frees may be read
// there. What runs on the line itself comes after what was started before.
void Executor::wait_for_lines(const Instruction& instruction, Step& step) {
  if (instruction.resource.kind == program::ResourceKind::Line) {
    return;
  }
  const auto wait = [&](WorkPtr& work) {
    if (work) {
      replicas_->wait(*work);
      work = nullptr;
    }
  };
  for (const auto* list :
       {&instruction.reads, &instruction.sets, &instruction.updates, &instruction.frees}) {
    for (const ValueId id : *list) {
      wait(step.slot(id).change);
      if (list != &instruction.reads) {
        wait(step.slot(id).use);
      }
    }
  }
}

}  // namespace penstock::run
