// The executor at a layer or the loss: finds what it reads, hands it weights and gradients, keeps
// what it makes.
#include <algorithm>
#include <optional>

#include <ATen/ATen.h>

#include "penstock/model/layer_error.h"
#include "penstock/model/module_random.h"
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

ValueId Executor::find_element(const std::vector<ValueId>& ids,
                               ValueKind kind,
                               int32_t element) const {
  for (const ValueId id : ids) {
    if (value(id).kind == kind && value(id).element == element) {
      return id;
    }
  }
  return -1;
}

// What enters a layer or the loss, in its own order: from the tuple of its edge and what is carried.
model::Tensors Executor::inputs_for(const Instruction& instruction,
                                    int32_t layer,
                                    Step& step) const {
  return model::gather_inputs(
      chain_.edges().inputs[static_cast<size_t>(layer)],
      step.slot(find(instruction.reads, ValueKind::Activation, layer)).tensors,
      [&](int32_t element) {
        return step.slot(find_element(instruction.reads, ValueKind::Carried, element)).tensors[0];
      });
}

// Gradients of what enters a layer or the loss. That of what is carried is added to what later readers
// have left.
void Executor::take_gradients(const Instruction& instruction,
                              int32_t layer,
                              model::Tensors made,
                              Step& step) {
  const model::Edges& edges = chain_.edges();
  const size_t at = static_cast<size_t>(layer);
  model::Tensors tuple = model::scatter_outputs(
      edges.inputs[at], std::move(made), edges.widths[at], [&](int32_t element, at::Tensor part) {
        const ValueId fresh = find_element(instruction.makes, ValueKind::CarriedGradient, element);
        const ValueId id =
            fresh >= 0 ? fresh
                       : find_element(instruction.updates, ValueKind::CarriedGradient, element);
        if (id < 0) {
          return;  // it has no gradient
        }
        model::Tensors& sum = step.slot(id).tensors;
        sum.resize(1);
        if (!part.defined() && !sum[0].defined()) {
          const model::TensorShape& shape = shapes_->carried[static_cast<size_t>(element)];
          part = at::zeros(shape.sizes,
                           at::TensorOptions(parameters_.device().where).dtype(shape.type));
        }
        model::add_gradient(sum[0], std::move(part));
      });
  if (const ValueId id = find(instruction.makes, ValueKind::Gradient, layer); id >= 0) {
    step.slot(id).tensors = std::move(tuple);
  }
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

// Of the layer: a forward that only reads it leaves no trace there.
model::LayerState Executor::state_for(const Instruction& forward) {
  const bool changes = std::any_of(forward.updates.begin(), forward.updates.end(), [&](ValueId id) {
    return value(id).kind == ValueKind::LayerState;
  });
  return parameters_.state_of(forward.layer, changes);
}

void Executor::forward(const Instruction& instruction, Step& step) {
  const int32_t layer = instruction.layer;
  const model::Edges& edges = chain_.edges();
  const ValueId output = find(instruction.makes, ValueKind::Activation, layer + 1);
  const ValueId saved = find(instruction.makes, ValueKind::Saved, layer);
  model::Saved* kept = nullptr;
  if (saved >= 0) {
    kept = &step.slot(saved).saved;
    kept->mode = instruction.keep;
    kept->without_output = output < 0;
  }
  const model::LayerState state = state_for(instruction);
  model::Pass pass = step.pass(instruction);
  pass.wanted = model::wanted_gradients(edges, *shapes_, layer);
  pass.state = &state;
  const model::Tensors input = inputs_for(instruction, layer, step);
  const model::Weights weights = weights_for(instruction, layer, step);
  model::Tensors made =
      model::naming_own_layer(chain_, chain_.layer(layer).name(), "forward", input, [&] {
        return chain_.layer(layer).forward(weights, input, pass, kept);
      });
  if (output < 0) {
    return;
  }
  const size_t at = static_cast<size_t>(layer);
  step.slot(output).tensors = model::scatter_outputs(
      edges.outputs[at],
      std::move(made),
      edges.widths[at + 1],
      [&](int32_t element, at::Tensor one) {
        step.slot(find_element(instruction.makes, ValueKind::Carried, element)).tensors = {
            std::move(one)};
      });
}

void Executor::loss(const Instruction& instruction, Step& step) {
  const int32_t last = program_.loss_index();
  const model::Tensors input = inputs_for(instruction, last, step);
  const Slot& targets = step.slot(find(instruction.reads, ValueKind::Targets, last));
  const model::Loss& loss = chain_.loss();
  const model::Weights weights = weights_for(instruction, last, step);
  std::optional<model::RandomScope> random;
  if (loss.is_random()) {
    model::Pass pass = step.pass(instruction);
    pass.layer = last;
    random.emplace(pass);
  }
  if (!step.is_training) {
    step.losses[static_cast<size_t>(instruction.micro_batch)].sum =
        model::naming_own_layer(chain_, loss.name(), "the loss", input, [&] {
          return loss.evaluate(weights, input, targets.tensors);
        });
    return;
  }
  const model::Gradients gradients = gradients_for(instruction, last, step);
  const double scale = step.scale_of(instruction) * step.input.loss_scale;
  model::Loss::Result result = model::naming_own_layer(chain_, loss.name(), "the loss", input, [&] {
    return loss.backward(weights, gradients, input, targets.tensors, scale);
  });
  take_gradients(instruction, last, std::move(result.input_gradients), step);
  step.losses[static_cast<size_t>(instruction.micro_batch)] = std::move(result);
}

// Backward as a whole, or the input gradient alone, which leaves `work` for backward_weight().
void Executor::backward(const Instruction& instruction, Step& step) {
  const int32_t layer = instruction.layer;
  const model::Edges& edges = chain_.edges();
  const size_t at = static_cast<size_t>(layer);
  const model::Tensors input = inputs_for(instruction, layer, step);
  Slot& saved = step.slot(find(instruction.reads, ValueKind::Saved, layer));
  const model::Tensors& tuple =
      step.slot(find(instruction.reads, ValueKind::Gradient, layer + 1)).tensors;
  model::Tensors gradient = model::gather_inputs(edges.outputs[at], tuple, [&](int32_t element) {
    const ValueId id = find_element(instruction.reads, ValueKind::CarriedGradient, element);
    return id < 0 ? at::Tensor() : step.slot(id).tensors[0];
  });
  // What the layer above hands on beside them.
  gradient.insert(gradient.end(), tuple.begin() + edges.widths[at + 1], tuple.end());
  model::Pass pass = step.pass(instruction);
  pass.wanted = model::wanted_gradients(edges, *shapes_, layer);
  const model::Layer& worker = chain_.layer(layer);
  const model::Weights weights = weights_for(instruction, layer, step);
  const model::Gradients gradients = gradients_for(instruction, layer, step);
  model::Tensors input_gradient =
      model::naming_own_layer(chain_, worker.name(), "backward", input, [&] {
        if (instruction.op == Op::Backward) {
          return worker.backward(weights, gradients, input, std::move(saved.saved), gradient, pass);
        }
        const ValueId work = find(instruction.makes, ValueKind::WeightWork, layer);
        return worker.backward_input(weights,
                                     gradients,
                                     input,
                                     std::move(saved.saved),
                                     gradient,
                                     pass,
                                     step.slot(work).work);
      });
  gradient.clear();
  take_gradients(instruction, layer, std::move(input_gradient), step);
}

void Executor::backward_weight(const Instruction& instruction, Step& step) {
  const int32_t layer = instruction.layer;
  const ValueId work = find(instruction.reads, ValueKind::WeightWork, layer);
  // Where they are sharded, weights are gathered only for the layers that ask for them here
  // (Unit::weight_too); the others find what they need in `work`.
  const model::Weights weights = weights_for(instruction, layer, step);
  const model::Gradients gradients = gradients_for(instruction, layer, step);
  model::naming_own_layer(chain_, chain_.layer(layer).name(), "the weight gradient", {}, [&] {
    chain_.layer(layer).backward_weight(weights, gradients, std::move(step.slot(work).work));
    return 0;
  });
}

}  // namespace penstock::run
