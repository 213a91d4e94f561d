#include "penstock/run/executor.h"

#include <chrono>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/units.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/program/verify.h"

namespace penstock::run {

using program::Instruction;
using program::Op;
using program::ValueId;
using program::ValueKind;
using Clock = std::chrono::steady_clock;

// The state of one run.
struct Executor::Step {
  const StepInput& input;
  const Update& update;
  std::vector<Slot> slots;
  std::vector<double> loss_sums;  // by micro-batch
  int64_t samples_each = 0;
  double scale = 1;
  double loss = 0;

  Slot& slot(ValueId id) { return slots[static_cast<size_t>(id)]; }
  const Slot& slot(ValueId id) const { return slots[static_cast<size_t>(id)]; }

  model::Pass pass(const Instruction& instruction) const {
    return {.seed = input.seed,
            .step = input.step,
            .first_sample = input.first_sample + instruction.micro_batch * samples_each,
            .layer = instruction.layer};
  }
};

namespace {

const program::RankProgram& sound_rank(const program::Program& program) {
  const program::Verdict verdict = program::verify(program);
  PENSTOCK_CHECK(verdict.is_sound(), "the program is unsound: ", verdict.violation->text);
  return program.ranks.front();
}

}  // namespace

Executor::Executor(const program::Program& program,
                   const model::Chain& chain,
                   model::Parameters& parameters)
    : program_(program), rank_(sound_rank(program)), chain_(chain), parameters_(parameters) {
  PENSTOCK_CHECK(program.ranks.size() == 1 && program.loss_index() == chain.size(),
                 "a program of ",
                 program.ranks.size(),
                 " ranks and ",
                 program.loss_index(),
                 " layers for a chain of ",
                 chain.size());
}

double Executor::run(const StepInput& input, const Update& update) {
  const int64_t samples = input.inputs.size(0);
  PENSTOCK_CHECK(
      input.micro_batches == program_.micro_batches && samples % program_.micro_batches == 0,
      samples,
      " samples for a program of ",
      program_.micro_batches,
      " micro-batches");
  const int64_t count = chain_.loss().count(input.targets);
  PENSTOCK_CHECK(count > 0, "no target of the batch counts");
  Step step{.input = input,
            .update = update,
            .slots = std::vector<Slot>(rank_.values.size()),
            .loss_sums = std::vector<double>(static_cast<size_t>(program_.micro_batches)),
            .samples_each = samples / program_.micro_batches,
            .scale = 1.0 / static_cast<double>(count)};
  // Each micro-batch has tensors of its own, so that the program's frees free them.
  for (const ValueId id : rank_.given) {
    const program::Value& value = rank_.values[static_cast<size_t>(id)];
    const at::Tensor& whole = value.kind == ValueKind::Targets ? input.targets : input.inputs;
    step.slot(id).tensors = {
        whole.narrow(0, value.micro_batch * step.samples_each, step.samples_each).clone()};
  }

  begin_record();
  program::RankTimeline& record = measured_.ranks.front();
  const Clock::time_point began = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  double now = 0;
  for (size_t i = 0; i < rank_.instructions.size(); ++i) {
    const Instruction& instruction = rank_.instructions[i];
    const int32_t index = static_cast<int32_t>(i);
    const memory::PeakMark mark;
    try {
      execute(instruction, step);
    } catch (const memory::LimitError& error) {
      fail_limit(index, error.what());
    }
    if (watcher_) {
      show_made(index, step);
    }
    for (const ValueId id : instruction.frees) {
      step.slot(id) = {};
    }
    const double end = seconds();
    record.spans.push_back({index, now, end});
    record.busy_seconds[instruction.resource] += end - now;
    record.memory.push_back({now, mark.peak_bytes()});
    record.memory.push_back({end, memory::cpu_usage().current_bytes});
    if (mark.peak_bytes() > record.peak_bytes) {
      record.peak_bytes = mark.peak_bytes();
      record.peak_instruction = index;
    }
    now = end;
  }
  measured_.seconds = now;
  return step.loss;
}

void Executor::begin_record() {
  measured_.ranks.assign(1, {});
  program::RankTimeline& record = measured_.ranks.front();
  record.spans.reserve(rank_.instructions.size());
  record.memory.reserve(2 * rank_.instructions.size() + 1);
  record.peak_bytes = memory::cpu_usage().current_bytes;
  record.memory.push_back({0, record.peak_bytes});
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
      return backward(instruction, step);
    case Op::Drop:
      return;  // its frees are all it does
    case Op::Step:
      // In the order of the micro-batches, whatever order they ran in.
      for (const double sum : step.loss_sums) {
        step.loss += sum;
      }
      step.loss *= step.scale;
      return step.update(step.loss);
  }
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
      parameters_.weights_of(layer), input.tensors, step.pass(instruction), kept);
  if (output >= 0) {
    step.slot(output).tensors = std::move(made);
  }
}

void Executor::loss(const Instruction& instruction, Step& step) {
  const int32_t last = program_.loss_index();
  const Slot& input = step.slot(find(instruction.reads, ValueKind::Activation, last));
  const Slot& targets = step.slot(find(instruction.reads, ValueKind::Targets, last));
  model::Loss::Result result = chain_.loss().backward(parameters_.weights_of(last),
                                                      parameters_.gradients_of(last),
                                                      input.tensors[0],
                                                      targets.tensors[0],
                                                      step.scale);
  step.loss_sums[static_cast<size_t>(instruction.micro_batch)] = result.sum;
  step.slot(instruction.makes[0]).tensors = {std::move(result.input_gradient)};
}

void Executor::backward(const Instruction& instruction, Step& step) {
  const int32_t layer = instruction.layer;
  const Slot& input = step.slot(find(instruction.reads, ValueKind::Activation, layer));
  Slot& saved = step.slot(find(instruction.reads, ValueKind::Saved, layer));
  const Slot& gradient = step.slot(find(instruction.reads, ValueKind::Gradient, layer + 1));
  model::Tensors made = chain_.layer(layer).backward(parameters_.weights_of(layer),
                                                     parameters_.gradients_of(layer),
                                                     input.tensors,
                                                     std::move(saved.saved),
                                                     gradient.tensors,
                                                     step.pass(instruction));
  if (!instruction.makes.empty()) {
    step.slot(instruction.makes[0]).tensors = std::move(made);
  }
}

void Executor::show_made(int32_t index, const Step& step) const {
  for (const ValueId id : rank_.instructions[static_cast<size_t>(index)].makes) {
    watcher_({index, rank_.values[static_cast<size_t>(id)], step.slot(id).tensors});
  }
}

void Executor::fail_limit(int32_t index, const char* what) const {
  const Instruction& instruction = rank_.instructions[static_cast<size_t>(index)];
  throw Error(ExitCode::Negative,
              cat("stopped at instruction ",
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
