#include "penstock/plan/exchanges.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/plan/update.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::RankProgram;
using program::ValueId;
using program::ValueKind;
using Average = UpdateForm::Average;

// One rank's list in another form: the optimizer's instructions of the form that it was written for
// are left out, those of `form_` are put in.
class RankExchanges {
 public:
  RankExchanges(program::Program& program,
                const UpdateForm& form,
                const ExchangeBytes& bytes,
                const UpdateLinks& links,
                int32_t number)
      : program_(program),
        form_(form),
        bytes_(bytes),
        links_(links),
        before_(std::move(program.ranks[static_cast<size_t>(number)])),
        after_(before_) {
    after_.instructions.clear();
  }

  RankProgram run() {
    for (const Instruction& instruction : before_.instructions) {
      if (is_of_another_form(instruction)) {
        continue;
      }
      if (instruction.op == Op::Reduce && !form_.reduces) {
        keep_over_stages(instruction);
      } else if (instruction.op == Op::Squares && !form_.reduces) {
        write_sketches(instruction);
      } else if (instruction.op == Op::Step) {
        write_step(instruction);
      } else {
        emit(instruction);
      }
    }
    renumber_values(after_);
    return std::move(after_);
  }

 private:
  bool is_over_replicas(const Instruction& instruction) const {
    return !program_.groups[static_cast<size_t>(instruction.group)].axes.contains(
        comm::Axis::Pipeline);
  }
  // Only what the first form may have: it reduces gradients, so it has no Sketch and no Exchange.
  bool is_of_another_form(const Instruction& instruction) const {
    PENSTOCK_CHECK(instruction.op != Op::Sketch, "the program does not reduce gradients");
    return instruction.op == Op::Prepare ||
           (instruction.op == Op::Gather && instruction.units.empty() &&
            is_over_replicas(instruction));
  }

  ValueId make(ValueKind kind) {
    after_.values.push_back({.kind = kind, .version = 0});
    return static_cast<ValueId>(after_.values.size() - 1);
  }
  void emit(Instruction instruction) { after_.instructions.push_back(std::move(instruction)); }
  void emit_between_replicas(Instruction instruction, int64_t bytes) {
    instruction.group = program_.add_group(comm::along(comm::Axis::Data));
    instruction.seconds = links_.of_replicas.seconds(bytes);
    instruction.sent_bytes = bytes;
    emit(std::move(instruction));
  }
  // Of what moves.
  std::vector<ValueId> held(ValueKind kind) const {
    const bool has_unit = program::info_of(kind).has_unit;
    std::vector<ValueId> found;
    for (const ValueId id : before_.persistent) {
      const program::Value& value = before_.value(id);
      if (value.kind != kind) {
        continue;
      }
      const bool is_frozen =
          has_unit && program_.units.at(static_cast<size_t>(value.unit)).is_frozen;
      if (!is_frozen) {
        found.push_back(id);
      }
    }
    return found;
  }
  static void append(std::vector<ValueId>& list, const std::vector<ValueId>& more) {
    list.insert(list.end(), more.begin(), more.end());
  }

  // No reduce over replicas. Stages then add up whole gradients, not slices.
  void keep_over_stages(Instruction reduce) {
    if (is_over_replicas(reduce)) {
      return;
    }
    const comm::RankGroup& group = program_.groups[static_cast<size_t>(reduce.group)];
    const int64_t bytes = bytes_.shared.at(static_cast<size_t>(reduce.units[0]));
    const auto others = static_cast<int64_t>(group.stages.size()) - 1;
    reduce.sent_bytes = bytes * others;
    reduce.seconds = links_.of_all.seconds(reduce.sent_bytes);
    reduce.working_bytes = std::min(bytes, kStageExchangeBytes);
    emit(std::move(reduce));
  }

  void write_sketches(Instruction squares) {
    const ValueId own = make(ValueKind::Sketches), all = make(ValueKind::AllSketches);
    emit({.op = Op::Sketch, .reads = std::exchange(squares.reads, {all}), .makes = {own}});
    emit_between_replicas({.op = Op::Gather, .reads = {own}, .makes = {all}, .frees = {own}},
                          bytes_.sketches);
    squares.frees.push_back(all);
    emit(std::move(squares));
  }

  // A table has one time for all that an optimizer does: it is the step's.
  void write_step(Instruction step) {
    const auto is_of_another = [&](ValueId id) {
      return before_.value(id).kind == ValueKind::AllLengths;
    };
    std::erase_if(step.reads, is_of_another);
    std::erase_if(step.frees, is_of_another);
    const std::vector<ValueId> states = held(ValueKind::State);
    Instruction prepare{.op = Op::Prepare, .updates = states};
    if (form_.fills_momentum || form_.fills_alive) {
      prepare.reads = prepare.frees = {make(ValueKind::Filled)};
      emit_between_replicas(
          {.op = Op::Gather, .makes = prepare.reads, .updates = states},
          (form_.fills_momentum ? bytes_.momentum : 0) + (form_.fills_alive ? bytes_.alive : 0));
    }
    const bool averages = form_.average != Average::None;
    if (averages) {
      prepare.makes.push_back(make(ValueKind::Prepared));
      append(prepare.updates, held(ValueKind::RankState));
    }
    if (form_.average == Average::Weights) {
      append(prepare.updates, held(ValueKind::Master));
    }
    if (form_.average == Average::Gradients) {
      append(prepare.updates, held(ValueKind::GradientSum));
    } else {
      append(prepare.reads, held(ValueKind::GradientSum));
    }
    if (form_.lengths > 0) {
      prepare.makes.push_back(make(ValueKind::Lengths));
    }
    if (prepare.makes.empty()) {
      emit(std::move(step));
      return;
    }
    prepare.reads.push_back(decision_of(step));
    emit(prepare);
    if (averages) {
      const ValueId ready = prepare.makes.front();
      emit_between_replicas(
          {.op = Op::Exchange, .reads = {ready}, .updates = prepare.updates, .frees = {ready}},
          bytes_.average);
    }
    if (form_.lengths > 0) {
      const ValueId own = prepare.makes.back(), all = make(ValueKind::AllLengths);
      emit_between_replicas({.op = Op::Gather, .reads = {own}, .makes = {all}, .frees = {own}},
                            form_.lengths * bytes_.lengths);
      step.reads.push_back(all);
      step.frees.push_back(all);
    }
    emit(std::move(step));
  }
  ValueId decision_of(const Instruction& step) const {
    const auto found = std::find_if(step.reads.begin(), step.reads.end(), [&](ValueId id) {
      return before_.value(id).kind == ValueKind::Decision;
    });
    PENSTOCK_CHECK(found != step.reads.end(), "a step without a decision");
    return *found;
  }

  program::Program& program_;
  const UpdateForm& form_;
  const ExchangeBytes& bytes_;
  const UpdateLinks& links_;
  const RankProgram before_;
  RankProgram after_;
};

}  // namespace

program::Program write_exchanges(program::Program program,
                                 const UpdateForm& form,
                                 const std::vector<ExchangeBytes>& ranks,
                                 const UpdateLinks& links) {
  if (form == UpdateForm() && program.replicas() == 1) {
    return program;
  }
  PENSTOCK_CHECK(program.replicas() > 1 && program.updates == 1 && !program.units.empty(),
                 "replicas that are none have something to exchange");
  PENSTOCK_CHECK(form.reduces || program.keeps_gradients(), "gradients in slices");
  PENSTOCK_CHECK(ranks.size() == program.ranks.size(), ranks.size(), " ranks that send");
  program.is_apart = form.is_apart();
  for (int32_t rank = 0; rank < static_cast<int32_t>(program.ranks.size()); ++rank) {
    const ExchangeBytes& bytes = ranks[static_cast<size_t>(rank)];
    program.ranks[static_cast<size_t>(rank)] =
        RankExchanges(program, form, bytes, links, rank).run();
  }
  return program;
}

}  // namespace penstock::plan
