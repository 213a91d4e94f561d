// Runs a rank's instructions in order; execute() has a row for each op. Their functions are in
// executor_layers.cpp (forward, loss, backward), executor_exchange.cpp (send, receive, gather,
// reduce), executor_update.cpp (add, and everything from sketch to step) and here (drop, stash).
// executor_graph.cpp records a step on a device that can.
#include "penstock/run/executor.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/units.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/program/verify.h"
#include "penstock/run/executor_step.h"
#include "penstock/run/stages.h"

namespace penstock::run {

using program::Instruction;
using program::Op;
using program::ValueId;
using program::ValueKind;

namespace {

// The first instruction that a graph leaves out: the Squares of the last update, whose settings
// change from step to step. Of an evaluation: the end of the list.
size_t find_update(const program::RankProgram& rank, bool is_evaluation) {
  size_t at = rank.instructions.size();
  if (is_evaluation) {
    return at;
  }
  while (at > 0 && rank.instructions[at - 1].op != Op::Squares) {
    --at;
  }
  PENSTOCK_CHECK(at > 0, "a program without an update");
  return at - 1;
}

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

}  // namespace

Executor::Executor(const program::Program& program,
                   const model::Chain& chain,
                   model::Parameters& parameters)
    : Executor(program,
               chain,
               parameters,
               /*group=*/nullptr,
               /*replicas=*/nullptr,
               /*transfers=*/nullptr) {}

Executor::Executor(const program::Program& program,
                   const model::Chain& chain,
                   model::Parameters& parameters,
                   comm::Group& group,
                   Replicas* replicas)
    : Executor(program, chain, parameters, &group, replicas, /*transfers=*/nullptr) {}

// An evaluation shares the step's transfers: all its routes are among those of the step.
Executor::Executor(const program::Program& evaluation, const Executor& step)
    : Executor(
          evaluation, step.chain_, step.parameters_, step.group_, step.replicas_, step.transfers_) {
}

Executor::Executor(const program::Program& program,
                   const model::Chain& chain,
                   model::Parameters& parameters,
                   comm::Group* group,
                   Replicas* replicas,
                   std::shared_ptr<Transfers> transfers)
    : program_(program),
      group_(group),
      replicas_(replicas),
      rank_(sound_rank(program, group)),
      transfers_(group == nullptr || transfers
                     ? std::move(transfers)
                     : make_transfers(*group, parameters.device(), routes_of(program))),
      chain_(chain),
      parameters_(parameters),
      stopwatch_(device::make_stopwatch(parameters.device().where)),
      inputs_(parameters.device()) {
  PENSTOCK_CHECK(program.loss_index() == chain.size(),
                 "a program of ",
                 program.loss_index(),
                 " layers for a chain of ",
                 chain.size());
  PENSTOCK_CHECK(program.replicas() == (replicas == nullptr ? 1 : replicas->size()) &&
                     program.replicas() == parameters.replicas() &&
                     program.shard == parameters.shard(),
                 "a program of ",
                 program.replicas(),
                 " replicas for parameters of ",
                 parameters.replicas());
  if (program.micro_batches > parameters.device().most_micro_batches) {
    throw ConfigError(cat("a step of ",
                          program.micro_batches,
                          " micro-batches; the device has room for the losses of ",
                          parameters.device().most_micro_batches,
                          ": use fewer plan.micro_batches"));
  }
  update_at_ = find_update(rank_, program.is_evaluation());
  require_layer_state();
  has_unreduced_gradients_ = std::any_of(
      rank_.instructions.begin(), rank_.instructions.end(), [](const Instruction& instruction) {
        return instruction.op == Op::Sketch;
      });
  if (group != nullptr && group->size() > 1 && program.updates == 1) {
    all_squares_ = std::make_unique<AllSquares>(
        chain, parts_of(program), program.mesh, program.shard != program::Shard::None, *group);
  }
  for (const program::Unit& unit : program.units) {
    for (const int32_t layer : unit.forward_only) {
      PENSTOCK_CHECK(!chain.layer(layer).backward_needs_weights(),
                     "the program gathers no weights for the backward of layer ",
                     layer);
    }
    for (const int32_t layer : unit.layers) {
      const bool is_asked =
          layer < chain.size() && chain.layer(layer).weight_gradient_needs_weights();
      PENSTOCK_CHECK(!is_asked || unit.is_needed_for(program::Op::BackwardWeight, layer),
                     "the program gathers no weights for the weight gradient of layer ",
                     layer);
    }
  }
}

// Layers change only what the program says is there.
void Executor::require_layer_state() const {
  const std::vector<model::Parameters::StateTensors>& states = parameters_.states();
  for (size_t layer = 0; layer < states.size(); ++layer) {
    const bool is_held =
        std::any_of(rank_.persistent.begin(), rank_.persistent.end(), [&](ValueId id) {
          return value(id).kind == ValueKind::LayerState &&
                 value(id).layer == static_cast<int32_t>(layer);
        });
    PENSTOCK_CHECK(states[layer].current.empty() || is_held,
                   "the program does not hold the state of layer ",
                   layer);
  }
}

double Executor::run(const StepInput& input, Stepper& stepper) {
  device::require_current(parameters_.device());
  const int64_t replicas = program_.replicas();
  const int64_t whole = input.samples > 0 ? input.samples : rows_in(input.batch);
  const int64_t samples = whole / replicas;
  PENSTOCK_CHECK(!program_.is_evaluation(), "an evaluation is to train");
  PENSTOCK_CHECK(input.micro_batches == program_.micro_batches &&
                     samples % program_.micro_batches == 0 && samples * replicas == whole,
                 whole,
                 " samples for a program of ",
                 replicas,
                 " x ",
                 program_.micro_batches,
                 " micro-batches");
  Step step{.input = input,
            .stepper = stepper,
            .slots = std::vector<Slot>(rank_.values.size()),
            .losses = std::vector<model::Loss::Result>(static_cast<size_t>(program_.micro_batches)),
            .samples_each = samples / program_.micro_batches,
            .micro_batches_each = program_.micro_batches / program_.updates,
            .first_sample = samples * parameters_.replica()};
  for (int32_t update = 0; update < program_.updates; ++update) {
    const int64_t each = whole / program_.updates;
    const int64_t count =
        input.counts.empty()
            ? chain_.loss().count(targets_of(chain_, rows_of(input.batch, update * each, each)))
            : input.counts[static_cast<size_t>(update)];
    PENSTOCK_CHECK(count > 0, "no target of the batch counts");
    step.scales.push_back(1.0 / static_cast<double>(count));
  }
  outcomes_.clear();
  run_step(step);
  // Of several updates move() has noted each outcome. Of one it is asked for here, where the device
  // is done: the step waits for it only once.
  if (outcomes_.empty()) {
    outcomes_.push_back(stepper.updated());
  }
  losses_.assign(static_cast<size_t>(program_.updates), 0);
  loss_scales_ = step.scales;
  for (size_t i = 0; i < loss_sums_.size(); ++i) {
    losses_[static_cast<size_t>(program_.update_of(static_cast<int32_t>(i)))] += loss_sums_[i];
  }
  double mean = 0;
  for (size_t i = 0; i < losses_.size(); ++i) {
    losses_[i] *= step.scales[i];
    mean += losses_[i] / static_cast<double>(losses_.size());
  }
  return mean;
}

LossSum Executor::evaluate(const model::Fields& batch,
                           int64_t samples,
                           const std::map<std::string, model::TensorShape>& shapes) {
  device::require_current(parameters_.device());
  PENSTOCK_CHECK(program_.is_evaluation() && samples % program_.micro_batches == 0,
                 samples,
                 " samples are to be evaluated by a program of ",
                 program_.micro_batches,
                 " micro-batches and ",
                 program_.updates,
                 " updates");
  const StepInput input{.batch = batch,
                        .samples = samples,
                        .shapes = shapes,
                        .micro_batches = program_.micro_batches};
  NoStepper nobody;
  Step step{.input = input,
            .stepper = nobody,
            .slots = std::vector<Slot>(rank_.values.size()),
            .losses = std::vector<model::Loss::Result>(static_cast<size_t>(program_.micro_batches)),
            .samples_each = samples / program_.micro_batches,
            .is_training = false};
  run_step(step);
  const bool has_loss = std::any_of(rank_.instructions.begin(),
                                    rank_.instructions.end(),
                                    [](const auto& one) { return one.op == Op::Loss; });
  LossSum result{.count = has_loss ? chain_.loss().count(targets_of(chain_, batch)) : 0};
  for (const double sum : loss_sums_) {
    result.sum += sum;
  }
  return result;
}

// Runs the whole program and leaves loss_sums_ by micro-batch, whatever order they ran in.
void Executor::run_step(Step& step) {
  find_shapes(step.input, step.samples_each, step.is_training);
  const int64_t replica_before = sent_to_replicas();
  const int64_t sent_before = group_ == nullptr ? 0 : group_->sent_bytes();
  try {
    memory::refuse_over_limit([&] { give_inputs(step); });
  } catch (const memory::LimitError& error) {
    throw OverLimit(cat(rank_name(), "the inputs of the step: ", error.what()));
  }
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
  replica_bytes_ = sent_to_replicas() - replica_before;
  sent_bytes_ = (group_ == nullptr ? 0 : group_->sent_bytes()) - sent_before + replica_bytes_;
  loss_sums_.clear();
  for (const model::Loss::Result& one : step.losses) {
    loss_sums_.push_back(one.pending_sum == nullptr ? one.sum : *one.pending_sum);
  }
}

// From the second step on a graph may take the place of everything before update_at_. There is none
// with a watcher, which must see every value, nor with several updates, which stand between the work.
void Executor::run_all(Step& step) {
  const bool is_recordable = uses_graph_ && !watcher_ && program_.updates == 1;
  if (!is_recordable || !has_run_ || !run_recorded(step)) {
    begin_record();
    run_instructions(0, update_at_, step);
  }
  run_instructions(update_at_, rank_.instructions.size(), step);
  // What is still on a line, as weights that are gathered after the step, belongs to this step.
  for (const WorkPtr& work : collectives_) {
    if (work) {
      replicas_->wait(*work);
    }
  }
}

// What comes from a peer is of the shape that its layer would have made, and shapes say what has a
// gradient. The last batch of an evaluation may be shorter than the others.
void Executor::find_shapes(const StepInput& input, int64_t samples, bool is_training) {
  if (shapes_ && shapes_->samples == samples) {
    return;
  }
  shapes_ = chain_.shapes_for(input.shapes.empty() ? model::shapes_of(input.batch) : input.shapes,
                              samples,
                              parameters_.compute_type(),
                              is_training);
}

// Each micro-batch has tensors of its own, so that the program's frees free them.
void Executor::give_inputs(Step& step) {
  const model::Edges& edges = chain_.edges();
  size_t place = 0;
  for (const ValueId id : rank_.given) {
    const program::Value& given = value(id);
    const std::vector<std::string> fields = given.kind == ValueKind::Targets ? edges.target_fields
                                            : given.kind == ValueKind::Carried
                                                ? std::vector{carried_name(given)}
                                                : edges.first_fields;
    const int64_t first =
        step.first_sample - step.input.first_row + given.micro_batch * step.samples_each;
    for (const std::string& name : fields) {
      const at::Tensor part =
          model::field_of(step.input.batch, name).narrow(0, first, step.samples_each);
      step.slot(id).tensors.push_back(inputs_.bring(place++, part, uses_graph_));
    }
  }
}

void Executor::run_instructions(size_t first, size_t end, Step& step) {
  program::RankTimeline& record = measured_.ranks.front();
  for (size_t i = first; i < end; ++i) {
    const Instruction& instruction = rank_.instructions[i];
    const int32_t index = static_cast<int32_t>(i);
    const memory::PeakMark mark;
    try {
      wait_for_lines(instruction, step);
      memory::refuse_over_limit([&] { execute(instruction, step); });
    } catch (const memory::LimitError& error) {
      fail_limit(index, error.what());
    }
    step.layer_weights.clear();  // views, which would hold what is freed below
    step.layer_gradients.clear();
    step.fresh_gradients.clear();
    if (watcher_) {
      show_made(index, step);
    }
    for (const ValueId id : instruction.frees) {
      free(id, index, step);
    }
    stopwatch_->mark();
    // Two points for each instruction: its peak, and what is live after its frees. finish_record()
    // adds the times, which a GPU knows only at the end.
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
    record.busy_seconds[busy_resource(rank_.instructions[i])] += span.end - span.start;
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
  using Run = void (Executor::*)(const Instruction&, Step&);
  // What each op does, in the order of Op.
  static constexpr program::OpTable<Run> kRuns = program::op_table<Run>({
      {program::Op::Forward, &Executor::forward},
      {program::Op::Loss, &Executor::loss},
      {program::Op::Backward, &Executor::backward},
      {program::Op::BackwardInput, &Executor::backward},
      {program::Op::BackwardWeight, &Executor::backward_weight},
      {program::Op::Send, &Executor::send},
      {program::Op::Receive, &Executor::receive},
      {program::Op::Drop, &Executor::drop},
      {program::Op::Stash, &Executor::stash},
      {program::Op::Gather, &Executor::gather},
      {program::Op::Reduce, &Executor::reduce},
      {program::Op::Add, &Executor::add},
      {program::Op::Sketch, &Executor::sketch},
      {program::Op::Squares, &Executor::squares},
      {program::Op::Decide, &Executor::decide},
      {program::Op::Prepare, &Executor::prepare},
      {program::Op::Exchange, &Executor::exchange},
      {program::Op::Merge, &Executor::merge},
      {program::Op::Step, &Executor::move},  // Step is the state of a run here
  });
  (this->*program::row_of(kRuns, instruction.op))(instruction, step);
}

void Executor::drop(const Instruction&, Step&) {}  // its frees are all it does

void Executor::stash(const Instruction& instruction, Step& step) {
  step.slot(instruction.makes[0]).tensors = parameters_.copy_weights();
}

// What is on its way to a peer stays until the peer has it.
void Executor::free(ValueId id, int32_t index, Step& step) {
  Slot& slot = step.slot(id);
  for (const std::unique_ptr<Sent>& sent : slot.sent) {
    transfers_->wait(*sent, [&] { return describe(index); });
  }
  slot.sent.clear();
  slot = {};
}

const std::string& Executor::carried_name(const program::Value& value) const {
  return chain_.edges().carried[static_cast<size_t>(value.element)].name;
}

std::string Executor::describe(int32_t index) const {
  return cat("instruction ",
             index,
             ", ",
             program::describe(program_, rank_.instructions[static_cast<size_t>(index)]));
}

void Executor::show_made(int32_t index, const Step& step) const {
  for (const ValueId id : rank_.instructions[static_cast<size_t>(index)].makes) {
    watcher_({index, value(id), step.slot(id).tensors});
  }
}

std::string Executor::rank_name() const {
  return group_ != nullptr && group_->size() > 1 ? cat("rank ", group_->rank(), " ") : "";
}

void Executor::fail_limit(int32_t index, const char* what) const {
  const Instruction& instruction = rank_.instructions[static_cast<size_t>(index)];
  // An asynchronous pipeline has several updates, and some may be done.
  const auto updates =
      std::count_if(rank_.instructions.begin(),
                    rank_.instructions.begin() + index,
                    [](const Instruction& earlier) { return earlier.op == Op::Step; });
  throw OverLimit(cat(rank_name(),
                      "stopped at instruction ",
                      index,
                      " (",
                      program::describe(program_, instruction),
                      "): ",
                      what,
                      "; the plan has this instruction work with ",
                      format_count(instruction.working_bytes),
                      " bytes; the weights are as ",
                      updates == 0 ? std::string("before this step")
                                   : cat("after ", updates, " of ", program_.updates, " updates")));
}

}  // namespace penstock::run
