#include "penstock/plan/holdings.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "penstock/base/error.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::RankProgram;
using program::Shard;
using program::Value;
using program::ValueId;
using program::ValueKind;

constexpr ValueId kNone = -1;

// What a rank holds of a unit.
struct UnitValues {
  ValueId master = kNone, compute = kNone, sum = kNone, state = kNone;
  std::map<int32_t, ValueId> shares;  // by layer

  ValueId gradient_of(int32_t layer) const {
    const auto share = shares.find(layer);
    return share == shares.end() ? sum : share->second;
  }
};

// The list of one rank. Persistent values come first, so the others are numbered after them.
class RankHolding {
 public:
  RankHolding(const program::Program& program, const RankProgram& before, const RankHoldings& held)
      : program_(program),
        units_of_(program::units_by_layer(program.units, program.loss_index())),
        units_(program.units.size()),
        after_(before) {
    after_.values.clear();
    after_.given.clear();
    after_.instructions.clear();
    for (const HeldValue& one : held.values) {
      place(one.value) = after_.hold(one.value, one.label);
    }
    moved_by_ = static_cast<ValueId>(after_.values.size());
    after_.values.insert(after_.values.end(), before.values.begin(), before.values.end());
    after_.given = moved(before.given);
    find_makers(before);
    find_last_work(before);
  }

  RankProgram run(const RankProgram& before) {
    for (size_t i = 0; i < before.instructions.size(); ++i) {
      Instruction instruction = before.instructions[i];
      for (auto list : {&Instruction::reads, &Instruction::makes, &Instruction::frees}) {
        instruction.*list = moved(instruction.*list);
      }
      instruction.updates = moved(instruction.updates);
      add_operands(instruction);
      const bool ends_update = instruction.op == Op::Step;
      after_.instructions.push_back(std::move(instruction));
      add_shares_after(i);
      if (ends_update) {
        begun_.clear();
      }
    }
    return std::move(after_);
  }

 private:
  ValueId& place(const Value& value) {
    if (value.kind == ValueKind::LayerState) {
      return layer_state_[value.layer];
    }
    if (!program::info_of(value.kind).has_unit) {
      return ignored_;
    }
    UnitValues& unit = units_.at(static_cast<size_t>(value.unit));
    switch (value.kind) {
      case ValueKind::Master:
        return unit.master;
      case ValueKind::Compute:
        return unit.compute;
      case ValueKind::GradientSum:
        return unit.sum;
      case ValueKind::State:
        return unit.state;
      default:
        return unit.shares[value.layer];
    }
  }

  std::vector<ValueId> moved(std::vector<ValueId> ids) const {
    for (ValueId& id : ids) {
      id += moved_by_;
    }
    return ids;
  }

  int32_t layer_of(const Instruction& instruction) const {
    return instruction.op == Op::Loss ? program_.loss_index() : instruction.layer;
  }

  // Whose backward fills a bucket.
  void find_makers(const RankProgram& before) {
    bucket_layer_.assign(after_.values.size(), -1);
    for (const Instruction& instruction : before.instructions) {
      for (const ValueId id : instruction.makes) {
        if (before.value(id).kind == ValueKind::Bucket) {
          bucket_layer_[static_cast<size_t>(id + moved_by_)] = layer_of(instruction);
        }
      }
    }
  }

  // Shares of a gradient that is whole are added when the last of an update's parts is there, so
  // that it can be reduced at once; those of buckets when all are reduced.
  void find_last_work(const RankProgram& before) {
    std::map<int32_t, size_t> last;  // of the update, by unit
    for (size_t i = 0; i < before.instructions.size(); ++i) {
      const Instruction& instruction = before.instructions[i];
      if (instruction.op == Op::Step) {
        for (const auto& [unit, at] : last) {
          shares_due_[at].push_back(unit);
        }
        last.clear();
      }
      const bool adds = program_.keeps_gradients() ? program::contributes(instruction.op)
                                                   : instruction.op == Op::Reduce;
      if (!adds) {
        continue;
      }
      for (const int32_t unit : program_.keeps_gradients()
                                    ? units_of_[static_cast<size_t>(layer_of(instruction))]
                                    : instruction.units) {
        if (!units_[static_cast<size_t>(unit)].shares.empty()) {
          last[unit] = i;
        }
      }
    }
  }

  void add_shares_after(size_t at) {
    const auto due = shares_due_.find(at);
    if (due == shares_due_.end()) {
      return;
    }
    for (const int32_t unit : due->second) {
      const UnitValues& held = units_[static_cast<size_t>(unit)];
      for (const auto& [layer, share] : held.shares) {
        after_.instructions.push_back({.op = Op::Add,
                                       .layer = layer,
                                       .units = {unit},
                                       .reads = {share},
                                       .updates = {held.sum}});
      }
    }
  }

  // What layers see, from step to step.
  std::vector<ValueId> visible_weights(int32_t unit) const {
    const UnitValues& held = units_[static_cast<size_t>(unit)];
    std::vector<ValueId> visible;
    if (held.compute != kNone) {
      visible.push_back(held.compute);
    }
    if (held.master != kNone && after_.value(held.master).slices.empty()) {
      visible.push_back(held.master);
    }
    return visible;
  }

  // The first work of an update at a layer sets its part of the gradient, later work adds to it.
  // All of a sum that layers share is one part.
  void change_gradient(Instruction& instruction, int32_t unit, int32_t layer) {
    const ValueId target = units_[static_cast<size_t>(unit)].gradient_of(layer);
    const bool is_one_part =
        program_.units[static_cast<size_t>(unit)].is_shared || instruction.op == Op::Reduce;
    const bool is_first = begun_.insert({target, is_one_part ? -1 : layer}).second;
    (is_first ? instruction.sets : instruction.updates).push_back(target);
  }

  void add_operands(Instruction& instruction) {
    if (program::is_at_layer(instruction.op)) {
      return add_to_work(instruction);
    }
    switch (instruction.op) {
      case Op::Gather:
        return add_to_gather(instruction);
      case Op::Reduce:
        return add_to_reduce(instruction);
      case Op::Stash:
        for (const UnitValues& held : units_) {
          if (held.master != kNone) {
            const auto unit = static_cast<int32_t>(&held - units_.data());
            const std::vector<ValueId> visible = visible_weights(unit);
            instruction.reads.insert(instruction.reads.end(), visible.begin(), visible.end());
          }
        }
        return;
      default:
        return;  // the update has a pass of its own
    }
  }

  void add_to_work(Instruction& instruction) {
    const int32_t layer = layer_of(instruction);
    if (instruction.op == Op::Forward) {
      add_layer_state(instruction);
    }
    const bool reads_copy =
        std::any_of(instruction.reads.begin(), instruction.reads.end(), [&](ValueId id) {
          return after_.value(id).kind == ValueKind::Stashed;
        });
    for (const int32_t unit : units_of_[static_cast<size_t>(layer)]) {
      if (program_.units[static_cast<size_t>(unit)].is_needed_for(instruction.op, layer) &&
          !reads_copy && program_.shard != Shard::Parameters) {
        const std::vector<ValueId> visible = visible_weights(unit);
        instruction.reads.insert(instruction.reads.end(), visible.begin(), visible.end());
      }
      const bool adds = instruction.op != Op::Forward && !program_.is_evaluation() &&
                        !program_.units[static_cast<size_t>(unit)].is_frozen;
      if (adds && program_.keeps_gradients()) {
        change_gradient(instruction, unit, layer);
      }
    }
  }

  // Only the first forward of a layer and micro-batch changes the layer's state.
  void add_layer_state(Instruction& forward) {
    const auto state = layer_state_.find(forward.layer);
    if (state == layer_state_.end()) {
      return;
    }
    const bool is_first = went_forward_.insert({forward.layer, forward.micro_batch}).second;
    const bool changes = is_first && !program_.is_evaluation();
    (changes ? forward.updates : forward.reads).push_back(state->second);
  }

  void add_to_gather(Instruction& instruction) {
    const UnitValues& held = units_[static_cast<size_t>(instruction.units.at(0))];
    if (program_.shard == Shard::Parameters || held.compute != kNone) {
      instruction.reads.push_back(held.master);
    }
    if (program_.shard != Shard::Parameters) {
      instruction.updates.push_back(held.compute != kNone ? held.compute : held.master);
    }
  }

  void add_to_reduce(Instruction& instruction) {
    const int32_t unit = instruction.units.at(0);
    if (instruction.reads.empty()) {
      instruction.updates.push_back(units_[static_cast<size_t>(unit)].sum);
      return;
    }
    const ValueId bucket = instruction.reads[0];
    change_gradient(instruction, unit, bucket_layer_[static_cast<size_t>(bucket)]);
  }

  const program::Program& program_;
  const std::vector<std::vector<int32_t>> units_of_;  // by layer, then the loss
  std::vector<UnitValues> units_;
  std::map<int32_t, ValueId> layer_state_;              // by layer
  std::set<std::pair<int32_t, int32_t>> went_forward_;  // layer and micro-batch
  RankProgram after_;
  ValueId moved_by_ = 0;
  ValueId ignored_ = kNone;
  std::vector<int32_t> bucket_layer_;                  // by value
  std::map<size_t, std::vector<int32_t>> shares_due_;  // units, by instruction before
  // Parts of gradients that have begun in this update: by value and layer.
  std::set<std::pair<ValueId, int32_t>> begun_;
};

}  // namespace

HeldValue fixed_value(const std::string& label, int64_t bytes) {
  return {{.kind = ValueKind::Fixed, .bytes = bytes}, label};
}

int64_t RankHoldings::bytes() const {
  int64_t sum = 0;
  for (const HeldValue& one : values) {
    sum += one.value.tier == program::Tier::Device ? one.value.bytes : 0;
  }
  return sum;
}

RankHoldings fixed_holdings(const std::vector<program::Held>& held) {
  RankHoldings holdings;
  for (const program::Held& one : held) {
    holdings.values.push_back(fixed_value(one.name, one.bytes));
  }
  return holdings;
}

program::Program hold(program::Program program, const Holdings& holdings) {
  PENSTOCK_CHECK(holdings.ranks.size() == program.ranks.size(),
                 "holdings of ",
                 holdings.ranks.size(),
                 " ranks for ",
                 program.ranks.size());
  PENSTOCK_CHECK(program.units.empty(), "a program that has units is to get some");
  program.units = holdings.units;
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const RankProgram before = std::move(program.ranks[rank]);
    PENSTOCK_CHECK(before.persistent.empty(), "rank ", rank, " holds something already");
    program.ranks[rank] = RankHolding(program, before, holdings.ranks[rank]).run(before);
  }
  return program;
}

}  // namespace penstock::plan
