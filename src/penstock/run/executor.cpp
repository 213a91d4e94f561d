#include "penstock/run/executor.h"

#include <cstring>
#include <set>

#include <ATen/ATen.h>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/base/units.h"
#include "penstock/comm/channels.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/program/verify.h"

namespace penstock::run {

using program::Instruction;
using program::Op;
using program::ValueId;
using program::ValueKind;

// The state of one run.
struct Executor::Step {
  const StepInput& input;
  const Update& update;
  std::vector<Slot> slots;
  std::vector<model::Loss::Result> losses;  // by micro-batch; their gradients have moved on
  int64_t samples_each = 0;
  int64_t micro_batches_each = 1;   // of an update
  std::vector<double> scales = {};  // of each target's loss in the mean, by update
  // Of the layer at work: weights of a copy, or gathered; gradients in buckets. Views.
  model::Tensors layer_weights = {}, layer_gradients = {};
  int64_t first_sample = 0;  // of this replica

  double scale_of(const Instruction& instruction) const {
    return scales[static_cast<size_t>(instruction.micro_batch / micro_batches_each)];
  }
  Slot& slot(ValueId id) { return slots[static_cast<size_t>(id)]; }
  const Slot& slot(ValueId id) const { return slots[static_cast<size_t>(id)]; }

  model::Pass pass(const Instruction& instruction) const {
    return {
        .seed = input.seed,
        .step = input.step + instruction.micro_batch / micro_batches_each,
        .first_sample = input.first_sample + first_sample + instruction.micro_batch * samples_each,
        .layer = instruction.layer};
  }
};

namespace {

const program::RankProgram& sound_rank(const program::Program& program, comm::Group* group) {
  const program::Verdict verdict = program::verify(program);
  PENSTOCK_CHECK(verdict.is_sound(), "the program is unsound: ", verdict.violation->text);
  const size_t ranks = group == nullptr ? 1 : static_cast<size_t>(group->size());
  PENSTOCK_CHECK(program.ranks.size() == ranks,
                 "a program of ",
                 program.ranks.size(),
                 " ranks for a group of ",
                 ranks);
  return program.ranks[group == nullptr ? 0 : static_cast<size_t>(group->rank())];
}

// Values of one kind and layer are sent and received in the same order.
int64_t channel_number(const program::Value& value) {
  return value.kind == ValueKind::Gradient ? comm::gradient_channel(value.layer)
                                           : comm::activation_channel(value.layer);
}

// What goes from which rank to which, at all of them.
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

}  // namespace

Executor::Executor(const program::Program& program,
                   const model::Chain& chain,
                   model::Parameters& parameters)
    : Executor(program, chain, parameters, /*group=*/nullptr, /*replicas=*/nullptr) {}

Executor::Executor(const program::Program& program,
                   const model::Chain& chain,
                   model::Parameters& parameters,
                   comm::Group& group,
                   Replicas* replicas)
    : Executor(program, chain, parameters, &group, replicas) {}

Executor::Executor(const program::Program& program,
                   const model::Chain& chain,
                   model::Parameters& parameters,
                   comm::Group* group,
                   Replicas* replicas)
    : program_(program),
      group_(group),
      replicas_(replicas),
      rank_(sound_rank(program, group)),
      transfers_(group == nullptr
                     ? nullptr
                     : make_transfers(*group, parameters.device(), routes_of(program))),
      chain_(chain),
      parameters_(parameters),
      stopwatch_(device::make_stopwatch(parameters.device().where)) {
  PENSTOCK_CHECK(program.loss_index() == chain.size(),
                 "a program of ",
                 program.loss_index(),
                 " layers for a chain of ",
                 chain.size());
  PENSTOCK_CHECK(program.replicas == (replicas == nullptr ? 1 : replicas->size()) &&
                     program.replicas == parameters.replicas() &&
                     program.shard == parameters.shard(),
                 "a program of ",
                 program.replicas,
                 " replicas for parameters of ",
                 parameters.replicas());
}

double Executor::run(const StepInput& input, const Update& update) {
  device::require_current(parameters_.device());
  const int64_t samples = input.inputs.size(0) / program_.replicas;
  PENSTOCK_CHECK(input.micro_batches == program_.micro_batches &&
                     samples % program_.micro_batches == 0 &&
                     samples * program_.replicas == input.inputs.size(0),
                 input.inputs.size(0),
                 " samples for a program of ",
                 program_.replicas,
                 " x ",
                 program_.micro_batches,
                 " micro-batches");
  Step step{.input = input,
            .update = update,
            .slots = std::vector<Slot>(rank_.values.size()),
            .losses = std::vector<model::Loss::Result>(static_cast<size_t>(program_.micro_batches)),
            .samples_each = samples / program_.micro_batches,
            .micro_batches_each = program_.micro_batches / program_.updates,
            .first_sample = samples * parameters_.replica()};
  for (const at::Tensor& targets : input.targets.chunk(program_.updates)) {
    const int64_t count = chain_.loss().count(targets);
    PENSTOCK_CHECK(count > 0, "no target of the batch counts");
    step.scales.push_back(1.0 / static_cast<double>(count));
  }
  find_shapes(input, step.samples_each);
  memory::refuse_over_limit([&] { give_inputs(step); });
  try {
    run_all(step);
  } catch (...) {
    if (replicas_ != nullptr) {
      replicas_->abandon(std::current_exception());
    }
    throw;
  }
  has_run_ = true;
  finish_record();
  // In the order of the micro-batches, whatever order they ran in.
  losses_.assign(static_cast<size_t>(program_.updates), 0);
  loss_sums_.clear();
  loss_scales_ = step.scales;
  for (size_t i = 0; i < step.losses.size(); ++i) {
    const model::Loss::Result& one = step.losses[i];
    loss_sums_.push_back(one.pending_sum == nullptr ? one.sum : *one.pending_sum);
    losses_[static_cast<size_t>(program_.update_of(static_cast<int32_t>(i)))] += loss_sums_.back();
  }
  double mean = 0;
  for (size_t i = 0; i < losses_.size(); ++i) {
    losses_[i] *= step.scales[i];
    mean += losses_[i] / static_cast<double>(losses_.size());
  }
  return mean;
}

// Everything up to the update can be recorded; the update's settings change from step to step.
void Executor::run_all(Step& step) {
  const size_t update_at = rank_.instructions.size() - 1;
  const bool is_recordable = uses_graph_ && !watcher_ && rank_.instructions.back().op == Op::Step;
  if (!is_recordable || !has_run_ || !run_recorded(step)) {
    begin_record();
    run_instructions(0, update_at, step);
  }
  run_instructions(update_at, update_at + 1, step);
  for (const WorkPtr& work : collectives_) {
    if (work) {
      replicas_->wait(*work);
    }
  }
}

// What comes from a peer is of the shape that its layer would have made.
void Executor::find_shapes(const StepInput& input, int64_t samples) {
  if (group_ == nullptr || !shapes_.empty()) {
    return;
  }
  std::vector<int64_t> sizes = input.inputs.sizes().vec();
  sizes[0] = samples;
  shapes_ = chain_.shapes_for({sizes, input.inputs.scalar_type()}, parameters_.compute_type());
}

// Each micro-batch has tensors of its own, so that the program's frees free them.
void Executor::give_inputs(Step& step) {
  for (size_t i = 0; i < rank_.given.size(); ++i) {
    const program::Value& value = rank_.values[static_cast<size_t>(rank_.given[i])];
    const at::Tensor& whole =
        value.kind == ValueKind::Targets ? step.input.targets : step.input.inputs;
    const at::Tensor part = whole.narrow(
        0, step.first_sample + value.micro_batch * step.samples_each, step.samples_each);
    PENSTOCK_CHECK(part.is_cpu(), "a batch comes from the CPU");
    step.slot(rank_.given[i]).tensors = {parameters_.device().is_gpu() ? upload(i, part)
                                                                       : part.clone()};
  }
}

// By way of pinned memory, from which a copy to the device needs no waiting. The memory can be used
// again at the next step, for every step ends with the device's work done.
at::Tensor Executor::upload(size_t given, const at::Tensor& part) {
  staged_inputs_.resize(rank_.given.size());
  graph_inputs_.resize(rank_.given.size());
  at::Tensor& staged = staged_inputs_[given];
  PENSTOCK_CHECK(!staged.defined() || staged.sizes() == part.sizes(),
                 "the batches of an executor have one size");
  if (!staged.defined()) {
    staged = at::empty(part.sizes(), part.options().pinned_memory(true));
  }
  std::memcpy(staged.data_ptr(), part.contiguous().const_data_ptr(), part.nbytes());
  at::Tensor& fixed = graph_inputs_[given];
  if (uses_graph_ && fixed.defined()) {
    return fixed.copy_(staged, /*non_blocking=*/true);
  }
  const at::Tensor made = staged.to(parameters_.device().where, /*non_blocking=*/true);
  if (uses_graph_) {
    fixed = made;
  }
  return made;
}

bool Executor::run_recorded(Step& step) {
  PENSTOCK_CHECK(program_.updates == 1, "a step with several updates is not recorded");
  const double scale = step.scales[0] * step.input.loss_scale;
  if (!graph_ || graph_scale_ != scale) {
    graph_.reset();
    graph_ = device::make_step_graph(parameters_.device());
    begin_record();
    try {
      memory::refuse_over_limit([&] { graph_->begin(); });
      stopwatch_->restart();
      stopwatch_->mark();
      run_instructions(0, rank_.instructions.size() - 1, step);
      graph_->end();
      graph_->replay();
    } catch (const OutOfMemory& error) {
      // A graph has its memory to itself, so it may fail where a plain step fits. Nothing has run yet.
      log_warning("the step is not recorded as a graph: ", error.what());
      step.slots = std::vector<Slot>(rank_.values.size());
      graph_.reset();
      graph_inputs_.clear();
      uses_graph_ = false;
      give_inputs(step);
      return false;
    } catch (...) {
      graph_.reset();
      throw;
    }
    graph_scale_ = scale;
    graph_losses_ = step.losses;
  } else {
    // Its memory is that of the step that was recorded; the last two points are the update's.
    program::RankTimeline& record = measured_.ranks.front();
    record.spans.clear();
    record.busy_seconds.clear();
    record.memory.resize(2 * (rank_.instructions.size() - 1) + 1);
    step.losses = graph_losses_;
    stopwatch_->restart(static_cast<int64_t>(rank_.instructions.size()));
    graph_->replay();
  }
  return true;
}

void Executor::use_graph() {
  for (int64_t i = 0; i < chain_.size(); ++i) {
    PENSTOCK_CHECK(!chain_.layer(i).is_random(), "a step with random layers cannot be recorded");
  }
  uses_graph_ = parameters_.device().is_gpu();
}

void Executor::release_graph() {
  graph_.reset();
}

void Executor::run_instructions(size_t first, size_t end, Step& step) {
  program::RankTimeline& record = measured_.ranks.front();
  for (size_t i = first; i < end; ++i) {
    const Instruction& instruction = rank_.instructions[i];
    const int32_t index = static_cast<int32_t>(i);
    const memory::PeakMark mark;
    try {
      wait_for_replicas(instruction, step);
      memory::refuse_over_limit([&] { execute(instruction, step); });
    } catch (const memory::LimitError& error) {
      fail_limit(index, error.what());
    }
    step.layer_weights.clear();  // views, which would hold what is freed below
    step.layer_gradients.clear();
    if (watcher_) {
      show_made(index, step);
    }
    for (const ValueId id : instruction.frees) {
      free(id, index, step);
    }
    stopwatch_->mark();
    const memory::Usage held = memory::usage();
    record.memory.push_back({0, held.peak_bytes});
    record.memory.push_back({0, held.current_bytes});
    if (held.peak_bytes > record.peak_bytes) {
      record.peak_bytes = held.peak_bytes;
      record.peak_instruction = index;
    }
  }
}

// Waits for the device; only then are the times of its marks known.
void Executor::finish_record() {
  stopwatch_->wait();
  program::RankTimeline& record = measured_.ranks.front();
  double now = 0;
  for (size_t i = 0; i < rank_.instructions.size(); ++i) {
    const double end = stopwatch_->seconds(0, static_cast<int64_t>(i) + 1);
    program::Span span{static_cast<int32_t>(i), now, end};
    if (const WorkPtr& work = collectives_[i]) {  // it went on while the rank computed
      span.start = std::max(0.0, work->began - record_began_);
      span.end = std::max(span.start, work->ended - record_began_);
    }
    record.spans.push_back(span);
    record.busy_seconds[rank_.instructions[i].resource] += span.end - span.start;
    record.memory[2 * i + 1].seconds = now;
    record.memory[2 * i + 2].seconds = end;
    now = end;
  }
  measured_.seconds = now;
}

void Executor::begin_record() {
  measured_.ranks.assign(1, {});
  program::RankTimeline& record = measured_.ranks.front();
  record.spans.reserve(rank_.instructions.size());
  record.memory.reserve(2 * rank_.instructions.size() + 1);
  record.peak_bytes = memory::usage().current_bytes;
  record.memory.push_back({0, record.peak_bytes});
  collectives_.assign(rank_.instructions.size(), nullptr);
  stopwatch_->restart();
  stopwatch_->mark();
  record_began_ = now_seconds();
}

void Executor::execute(const Instruction& instruction, Step& step) {
  switch (instruction.op) {
    case Op::Clear:
      return parameters_.zero_gradients();
    case Op::Forward:
      return forward(instruction, step);
    case Op::Loss:
      return loss(instruction, step);
    case Op::Backward:
    case Op::BackwardInput:
      return backward(instruction, step);
    case Op::BackwardWeight:
      return backward_weight(instruction, step);
    case Op::Send:
      return send(instruction, step);
    case Op::Receive:
      return receive(instruction, step);
    case Op::Drop:
      return;  // its frees are all it does
    case Op::Step:
      parameters_.complete_gradients();
      return step.update();
    case Op::Stash:
      step.slot(instruction.makes[0]).tensors = parameters_.copy_weights();
      return;
    case Op::Gather:
      return gather(instruction, step);
    case Op::Reduce:
      return reduce(instruction, step);
  }
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

ValueId Executor::find(const std::vector<ValueId>& ids, ValueKind kind, int32_t layer) const {
  for (const ValueId id : ids) {
    const program::Value& value = rank_.values[static_cast<size_t>(id)];
    if (value.kind == kind && value.layer == layer) {
      return id;
    }
  }
  return -1;
}

// The newest, or a copy that the instruction reads, or what was gathered for it.
model::Weights Executor::weights_for(const Instruction& instruction, int32_t layer, Step& step) {
  if (parameters_.shard() == program::Shard::Parameters) {
    step.layer_weights =
        parameters_.weights_in_units(layer, [&](int64_t unit) -> const model::Tensors& {
          const ValueId id =
              find(instruction.reads, ValueKind::Gathered, static_cast<int32_t>(unit));
          return step.slot(id).tensors;
        });
    return step.layer_weights;
  }
  const ValueId copy = find(instruction.reads, ValueKind::Weights, program_.loss_index());
  if (copy < 0) {
    return parameters_.weights_of(layer);
  }
  step.layer_weights = parameters_.weights_in(step.slot(copy).tensors, layer);
  return step.layer_weights;
}

// The rank's own, or buckets that the instruction makes or an earlier half made.
model::Gradients Executor::gradients_for(const Instruction& instruction,
                                         int32_t layer,
                                         Step& step) {
  const program::Shard shard = parameters_.shard();
  if (shard == program::Shard::None || shard == program::Shard::Optimizer) {
    return parameters_.gradients_of(layer);
  }
  step.layer_gradients =
      parameters_.gradients_in_buckets(layer, [&](int64_t unit) -> const at::Tensor& {
        const int32_t number = static_cast<int32_t>(unit);
        const ValueId made = find(instruction.makes, ValueKind::Bucket, number);
        Slot& slot =
            step.slot(made >= 0 ? made : find(instruction.reads, ValueKind::Bucket, number));
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
  chain_.layer(layer).backward_weight(parameters_.weights_of(layer),
                                      gradients_for(instruction, layer, step),
                                      std::move(step.slot(work).work));
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

// What is on its way to a peer stays until the peer has it.
void Executor::free(ValueId id, int32_t index, Step& step) {
  Slot& slot = step.slot(id);
  for (const std::unique_ptr<Sent>& sent : slot.sent) {
    transfers_->wait(*sent, [&] { return describe(index); });
  }
  slot.sent.clear();
  if (slot.pending) {
    replicas_->wait(*slot.pending);
  }
  slot = {};
}

std::string Executor::describe(int32_t index) const {
  return cat("instruction ",
             index,
             ", ",
             program::describe(program_, rank_.instructions[static_cast<size_t>(index)]));
}

void Executor::show_made(int32_t index, const Step& step) const {
  for (const ValueId id : rank_.instructions[static_cast<size_t>(index)].makes) {
    watcher_({index, rank_.values[static_cast<size_t>(id)], step.slot(id).tensors});
  }
}

void Executor::fail_limit(int32_t index, const char* what) const {
  const Instruction& instruction = rank_.instructions[static_cast<size_t>(index)];
  throw OverLimit(
      cat(group_ != nullptr && group_->size() > 1 ? cat("rank ", group_->rank(), " ") : "",
          "stopped at instruction ",
          index,
          " (",
          program::describe(program_, instruction),
          "): ",
          what,
          "; the plan has this instruction work with ",
          format_count(instruction.working_bytes),
          " bytes; the weights are as before this step"));
}

}  // namespace penstock::run
