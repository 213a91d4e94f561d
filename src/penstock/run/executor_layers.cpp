// The executor at a layer or the loss: finds what it reads, hands it weights and gradients, keeps
// what it makes.
#include <algorithm>

#include <ATen/ATen.h>

#include "penstock/model/parameters.h"
#include "penstock/run/executor_step.h"

namespace penstock::run {

using program::Instruction;
using program::Op;
using program::ValueId;
using program::ValueKind;

ValueId Executor::find(const std::vector<ValueId>& ids, ValueKind kind, int32_t layer) const {
  for (const ValueId id : ids) {
    if (value(id).kind == kind && (!program::info_of(kind).has_layer || value(id).layer == layer)) {
      return id;
    }
  }
  return -1;
}

ValueId Executor::find_unit(const std::vector<ValueId>& ids, ValueKind kind, int32_t unit) const {
  for (const ValueId id : ids) {
    if (value(id).kind == kind && value(id).unit == unit) {
      return id;
    }
  }
  return -1;
}

// What was gathered for it, or a copy that it reads, or the newest.
model::Weights Executor::weights_for(const Instruction& instruction, int32_t layer, Step& step) {
  const auto is_of = [&](ValueKind kind) {
    return std::any_of(instruction.reads.begin(), instruction.reads.end(), [&](ValueId id) {
      return value(id).kind == kind;
    });
  };
  if (is_of(ValueKind::Gathered)) {
    step.layer_weights =
        parameters_.weights_in_units(layer, [&](int64_t unit) -> const model::Tensors* {
          const ValueId id =
              find_unit(instruction.reads, ValueKind::Gathered, static_cast<int32_t>(unit));
          return id < 0 ? nullptr : &step.slot(id).tensors;
        });
    return step.layer_weights;
  }
  const auto copy = std::find_if(instruction.reads.begin(),
                                 instruction.reads.end(),
                                 [&](ValueId id) { return value(id).kind == ValueKind::Stashed; });
  if (copy == instruction.reads.end()) {
    return parameters_.weights_of(layer);
  }
  step.layer_weights = parameters_.weights_in(step.slot(*copy).tensors, layer);
  return step.layer_weights;
}

// The rank's own sums, of which the instruction may be the first to write some; or buckets that it
// makes, or that the input gradient has made.
model::Gradients Executor::gradients_for(const Instruction& instruction,
                                         int32_t layer,
                                         Step& step) {
  const auto is_bucket = [&](ValueId id) { return value(id).kind == ValueKind::Bucket; };
  const bool has_buckets =
      std::any_of(instruction.makes.begin(), instruction.makes.end(), is_bucket) ||
      std::any_of(instruction.updates.begin(), instruction.updates.end(), is_bucket);
  if (!has_buckets) {
    if (!instruction.sets.empty()) {
      std::vector<int32_t> units;
      for (const ValueId id : instruction.sets) {
        units.push_back(value(id).unit);
      }
      step.fresh_gradients = parameters_.begin_gradients(layer, units);
    }
    return parameters_.gradients_of(layer, step.fresh_gradients);
  }
  step.layer_gradients =
      parameters_.gradients_in_buckets(layer, [&](int64_t unit) -> const at::Tensor& {
        const int32_t number = static_cast<int32_t>(unit);
        const ValueId made = find_unit(instruction.makes, ValueKind::Bucket, number);
        Slot& slot =
            step.slot(made >= 0 ? made : find_unit(instruction.updates, ValueKind::Bucket, number));
        if (slot.tensors.empty()) {
          slot.tensors = {parameters_.make_bucket(unit)};
          slot.layer = layer;
        }
        return slot.tensors[0];
      });
  return step.layer_gradients;
}

void Executor::forward(const Instruction& instruction, Step& step) {
  const int32_t layer = instruction.layer;
  const Slot& input = step.slot(find(instruction.reads, ValueKind::Activation, layer));
  const ValueId output = find(instruction.makes, ValueKind::Activation, layer + 1);
  const ValueId saved = find(instruction.makes, ValueKind::Saved, layer);
  model::Saved* kept = nullptr;
  if (saved >= 0) {
    kept = &step.slot(saved).saved;
    kept->way = instruction.keep;
    kept->without_output = output < 0;
  }
  model::Tensors made = chain_.layer(layer).forward(
      weights_for(instruction, layer, step), input.tensors, step.pass(instruction), kept);
  if (output >= 0) {
    step.slot(output).tensors = std::move(made);
  }
}

void Executor::loss(const Instruction& instruction, Step& step) {
  const int32_t last = program_.loss_index();
  const Slot& input = step.slot(find(instruction.reads, ValueKind::Activation, last));
  const Slot& targets = step.slot(find(instruction.reads, ValueKind::Targets, last));
  if (!step.is_training) {
    step.losses[static_cast<size_t>(instruction.micro_batch)].sum = chain_.loss().evaluate(
        weights_for(instruction, last, step), input.tensors[0], targets.tensors[0]);
    return;
  }
  model::Loss::Result result =
      chain_.loss().backward(weights_for(instruction, last, step),
                             gradients_for(instruction, last, step),
                             input.tensors[0],
                             targets.tensors[0],
                             step.scale_of(instruction) * step.input.loss_scale);
  step.slot(find(instruction.makes, ValueKind::Gradient, last)).tensors = {
      std::move(result.input_gradient)};
  step.losses[static_cast<size_t>(instruction.micro_batch)] = std::move(result);
}

// Backward as a whole, or the input gradient alone, which leaves `work` for backward_weight().
void Executor::backward(const Instruction& instruction, Step& step) {
  const int32_t layer = instruction.layer;
  const Slot& input = step.slot(find(instruction.reads, ValueKind::Activation, layer));
  Slot& saved = step.slot(find(instruction.reads, ValueKind::Saved, layer));
  const Slot& gradient = step.slot(find(instruction.reads, ValueKind::Gradient, layer + 1));
  const ValueId made = find(instruction.makes, ValueKind::Gradient, layer);
  model::Tensors input_gradient;
  if (instruction.op == Op::Backward) {
    input_gradient = chain_.layer(layer).backward(weights_for(instruction, layer, step),
                                                  gradients_for(instruction, layer, step),
                                                  input.tensors,
                                                  std::move(saved.saved),
                                                  gradient.tensors,
                                                  step.pass(instruction));
  } else {
    const ValueId work = find(instruction.makes, ValueKind::WeightWork, layer);
    input_gradient = chain_.layer(layer).backward_input(weights_for(instruction, layer, step),
                                                        gradients_for(instruction, layer, step),
                                                        input.tensors,
                                                        std::move(saved.saved),
                                                        gradient.tensors,
                                                        step.pass(instruction),
                                                        step.slot(work).work);
  }
  if (made >= 0) {
    step.slot(made).tensors = std::move(input_gradient);
  }
}

void Executor::backward_weight(const Instruction& instruction, Step& step) {
  const int32_t layer = instruction.layer;
  const ValueId work = find(instruction.reads, ValueKind::WeightWork, layer);
  // Not weights_for(): a weight gradient reads no weights (Unit::is_needed_for), and none are gathered
  // for it. Layers find what they need in `work`.
  chain_.layer(layer).backward_weight(parameters_.weights_of(layer),
                                      gradients_for(instruction, layer, step),
                                      std::move(step.slot(work).work));
}

}  // namespace penstock::run
