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

int64_t channel_number(const program::Value& value) {
  return value.kind == ValueKind::Gradient ? comm::gradient_channel(value.layer)
                                           : comm::activation_channel(value.layer);
}

std::vector<Route> routes_of(const program::Program& program) {
  std::set<Route> routes;
  for (size_t from = 0; from < program.ranks.size(); ++from) {
    const program::RankProgram& rank = program.ranks[from];
    for (const Instruction& instruction : rank.instructions) {
      if (instruction.op == Op::Send) {
        routes.insert({static_cast<int32_t>(from),
                       instruction.resource.index,
                       channel_number(rank.values[static_cast<size_t>(instruction.reads[0])])});
      }
    }
  }
  return {routes.begin(), routes.end()};
}

// What travels between ranks: the tensor itself, and what a layer hands on beside a gradient.
std::vector<model::TensorShape> Executor::shapes_of(const program::Value& value) const {
  std::vector<model::TensorShape> shapes{shapes_[static_cast<size_t>(value.layer)]};
  if (value.kind == ValueKind::Gradient && value.layer < chain_.size()) {
    for (const model::TensorShape& shape : chain_.layer(value.layer).beside_gradient()) {
      shapes.push_back(shape);
    }
  }
  return shapes;
}

void Executor::send(const Instruction& instruction, Step& step) {
  const ValueId id = instruction.reads[0];
  const program::Value& value = rank_.values[static_cast<size_t>(id)];
  Slot& slot = step.slot(id);
  const size_t count = shapes_of(value).size();
  PENSTOCK_CHECK(slot.tensors.size() >= count,
                 slot.tensors.size(),
                 " tensors to send, and the peer expects ",
                 count);
  for (size_t i = 0; i < count; ++i) {
    at::Tensor& tensor = slot.tensors[i];
    tensor = tensor.contiguous();
    slot.sent.push_back(
        transfers_->send(instruction.resource.index, channel_number(value), tensor));
  }
}

void Executor::receive(const Instruction& instruction, Step& step) {
  const ValueId id = instruction.makes[0];
  const program::Value& value = rank_.values[static_cast<size_t>(id)];
  const int32_t index = static_cast<int32_t>(&instruction - rank_.instructions.data());
  for (const model::TensorShape& shape : shapes_of(value)) {
    const at::Tensor tensor =
        at::empty(shape.sizes, at::TensorOptions(parameters_.device().where).dtype(shape.type));
    transfers_->receive(
        instruction.resource.index, channel_number(value), tensor, [&] { return describe(index); });
    step.slot(id).tensors.push_back(tensor);
  }
}

void Executor::gather(const Instruction& instruction, Step& step) {
  const size_t index = static_cast<size_t>(&instruction - rank_.instructions.data());
  const model::Tensors weights = parameters_.unit_weights(instruction.layer);
  collectives_[index] = replicas_->gather(
      parameters_, instruction.layer, weights, describe(static_cast<int32_t>(index)));
  if (!instruction.makes.empty()) {
    step.slot(instruction.makes[0]).tensors = weights;
    step.slot(instruction.makes[0]).pending = collectives_[index];
  }
}

void Executor::reduce(const Instruction& instruction, Step& step) {
  const size_t index = static_cast<size_t>(&instruction - rank_.instructions.data());
  std::string what = describe(static_cast<int32_t>(index));
  if (instruction.reads.empty()) {
    collectives_[index] = replicas_->reduce(parameters_, instruction.layer, std::move(what));
  } else {
    Slot& bucket = step.slot(instruction.reads[0]);
    collectives_[index] = replicas_->reduce_bucket(
        parameters_, instruction.layer, bucket.layer, bucket.tensors[0], std::move(what));
    bucket.pending = collectives_[index];
  }
  step.slot(instruction.makes[0]).pending = collectives_[index];
}

// What it reads may still be on its way.
void Executor::wait_for_replicas(const Instruction& instruction, Step& step) {
  for (const ValueId id : instruction.reads) {
    const ValueKind kind = rank_.values[static_cast<size_t>(id)].kind;
    if (kind == ValueKind::Gathered || kind == ValueKind::Reduced) {
      if (const WorkPtr& pending = step.slot(id).pending) {
        replicas_->wait(*pending);
      }
    }
  }
}

}  // namespace penstock::run
