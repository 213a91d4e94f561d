#include "penstock/plan/update.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/base/error.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::RankProgram;
using program::Value;
using program::ValueId;
using program::ValueKind;

// Units that several stages have, with those stages.
std::map<int32_t, std::vector<int32_t>> find_tied(const program::Program& program) {
  std::map<int32_t, std::vector<int32_t>> tied;
  for (int32_t rank = 0; rank < program.mesh.ranks(); ++rank) {
    if (program.mesh.with(rank, comm::Axis::Pipeline, 0) != 0) {
      continue;  // all pipelines are alike
    }
    const RankProgram& list = program.ranks[static_cast<size_t>(rank)];
    for (const ValueId id : list.persistent) {
      if (list.value(id).kind == ValueKind::GradientSum) {
        tied[list.value(id).unit].push_back(program.stage_of(rank));
      }
    }
  }
  std::erase_if(tied, [](const auto& one) { return one.second.size() < 2; });
  return tied;
}

// One rank's list: each Step becomes the sums over stages, squares, decision and the Step itself.
class RankUpdates {
 public:
  RankUpdates(program::Program& program,
              const Holdings& holdings,
              const LinkCost& link,
              int32_t number)
      : program_(program),
        holdings_(holdings),
        link_(link),
        number_(number),
        before_(std::move(program.ranks[static_cast<size_t>(number)])),
        after_(before_) {
    after_.instructions.clear();
    for (const ValueId id : before_.persistent) {
      const Value& value = before_.value(id);
      if (value.kind == ValueKind::GradientSum) {
        sums_[value.unit] = id;
      } else if (value.kind == ValueKind::RankState) {
        moves_[kOfAll].push_back(id);
      } else if (value.kind == ValueKind::LayerState) {
        layer_state_.push_back(id);
        layer_state_bytes_ += value.bytes / 2;  // of one of its two copies
      } else if ((value.kind == ValueKind::Master || value.kind == ValueKind::Compute ||
                  value.kind == ValueKind::State) &&
                 !program.units[static_cast<size_t>(value.unit)].is_frozen) {
        moves_[value.unit].push_back(id);
      }
    }
  }

  RankProgram run(const std::map<int32_t, std::vector<int32_t>>& tied) {
    int32_t update = 0;
    for (const Instruction& instruction : before_.instructions) {
      if (instruction.op != Op::Step) {
        after_.instructions.push_back(instruction);
        continue;
      }
      for (const auto& [unit, stages] : tied) {
        if (sums_.contains(unit)) {
          add_over_stages(unit, stages);
        }
      }
      write_update(instruction, update++);
    }
    return std::move(after_);
  }

 private:
  static constexpr int32_t kOfAll = -1;

  ValueId make(ValueKind kind, int32_t update) {
    after_.values.push_back({.kind = kind, .version = update});
    return static_cast<ValueId>(after_.values.size() - 1);
  }
  void emit(Instruction instruction) { after_.instructions.push_back(std::move(instruction)); }

  void add_over_stages(int32_t unit, const std::vector<int32_t>& stages) {
    const std::vector<int64_t>& sent = holdings_.ranks[static_cast<size_t>(number_)].shared_bytes;
    PENSTOCK_CHECK(static_cast<size_t>(unit) < sent.size(), "no bytes of a shared unit");
    const int64_t bytes = sent[static_cast<size_t>(unit)];
    const std::string& name = program_.units[static_cast<size_t>(unit)].name;
    emit({.op = Op::Reduce,
          .units = {unit},
          .group = program_.add_group(comm::among_stages(name, stages)),
          .updates = {sums_.at(unit)},
          .seconds = link_.seconds(bytes * static_cast<int64_t>(stages.size() - 1)),
          .working_bytes = std::min(bytes, kStageExchangeBytes),
          .sent_bytes = bytes * static_cast<int64_t>(stages.size() - 1)});
  }

  // Each replica's forwards have left a state of their own.
  void merge_layer_state() {
    const int64_t others = program_.replicas() - 1;
    const int64_t bytes = layer_state_bytes_ * others;
    const int32_t group = program_.add_group(comm::along(comm::Axis::Data));
    emit({.op = Op::Merge,
          .group = group,
          .updates = layer_state_,
          .resource = {program::ResourceKind::Line, group},
          .seconds = link_.seconds(bytes),
          .working_bytes = layer_state_bytes_ + bytes,  // that of all replicas
          .sent_bytes = bytes});
  }

  void write_update(Instruction step, int32_t update) {
    if (!layer_state_.empty() && program_.replicas() > 1) {
      merge_layer_state();
    }
    step.updates.insert(step.updates.end(), layer_state_.begin(), layer_state_.end());
    Instruction squares{.op = Op::Squares};
    for (const auto& [unit, sum] : sums_) {
      squares.reads.push_back(sum);
      step.units.push_back(unit);
      step.reads.push_back(sum);
    }
    for (const auto& [unit, moved] : moves_) {
      step.updates.insert(step.updates.end(), moved.begin(), moved.end());
    }
    ValueId made = make(ValueKind::Squares, update);
    squares.makes = {made};
    emit(std::move(squares));
    // The ranks of an asynchronous pipeline have no norm in common: each updates by itself.
    const auto others = static_cast<int64_t>(program_.ranks.size()) - 1;
    if (others > 0 && program_.updates == 1) {
      const ValueId own = std::exchange(made, make(ValueKind::AllSquares, update));
      // A sum of squares is an ExactSum: two doubles for each parameter of the model.
      const int64_t bytes = 2 * static_cast<int64_t>(sizeof(double)) * holdings_.num_parameters;
      emit({.op = Op::Gather,
            .group = program_.add_group(comm::all()),
            .reads = {own},
            .makes = {made},
            .frees = {own},
            // A pipeline of times alone has no parameters, and so no message here.
            .seconds = bytes > 0 ? link_.seconds(bytes * others) : 0,
            .sent_bytes = bytes * others});
    }
    const ValueId decision = make(ValueKind::Decision, update);
    emit({.op = Op::Decide, .reads = {made}, .makes = {decision}, .frees = {made}});
    step.reads.push_back(decision);
    step.frees.push_back(decision);
    emit(std::move(step));
  }

  program::Program& program_;
  const Holdings& holdings_;
  const LinkCost& link_;
  const int32_t number_;
  const RankProgram before_;
  RankProgram after_;
  std::map<int32_t, ValueId> sums_;                // by unit
  std::map<int32_t, std::vector<ValueId>> moves_;  // what a step of the unit changes
  std::vector<ValueId> layer_state_;
  int64_t layer_state_bytes_ = 0;
};

}  // namespace

program::Program write_updates(program::Program program,
                               const Holdings& holdings,
                               const LinkCost& link) {
  const std::map<int32_t, std::vector<int32_t>> tied = find_tied(program);
  for (int32_t rank = 0; rank < static_cast<int32_t>(program.ranks.size()); ++rank) {
    program.ranks[static_cast<size_t>(rank)] = RankUpdates(program, holdings, link, rank).run(tied);
  }
  return program;
}

}  // namespace penstock::plan
