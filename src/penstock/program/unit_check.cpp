#include "penstock/program/unit_check.h"

#include <algorithm>

#include "penstock/base/error.h"

namespace penstock::program {

namespace {

bool has(const std::vector<ValueId>& list, ValueId id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

// -1 for what is no work at a layer.
int32_t layer_of(const Program& program, const Instruction& instruction) {
  const bool is_loss = instruction.op == Op::Loss;
  const int32_t layer = is_loss ? program.loss_index() : instruction.layer;
  const bool is_in_range = layer >= 0 && layer <= program.loss_index();
  return is_at_layer(instruction.op) && is_in_range ? layer : -1;
}

}  // namespace

UnitCheck::UnitCheck(const RankLives& lives)
    : lives_(lives),
      program_(lives.program()),
      units_of_(units_by_layer(program_.units, program_.loss_index())),
      works_at_(program_.layers.size() + 1, 0),
      holdings_(program_.units.size()),
      parts_(lives.rank().values.size()),
      gathered_after_(lives.rank().values.size(), -1) {
  find_ranks();
  for (const Instruction& instruction : lives.rank().instructions) {
    has_own_gradients_ = has_own_gradients_ || instruction.op == Op::Sketch;
    if (const int32_t layer = layer_of(program_, instruction); layer >= 0) {
      works_at_[static_cast<size_t>(layer)] = 1;
      for (const int32_t number : units_of(layer)) {
        holding(number).is_own = true;
      }
    }
  }
  find_holdings();
}

// Which ranks of this pipeline work at layers of a unit: gradients of a unit that several have are
// added up over them.
void UnitCheck::find_ranks() {
  if (program_.units.empty()) {
    return;
  }
  const std::vector<int32_t> pipeline =
      comm::members(program_.mesh, comm::along(comm::Axis::Pipeline), lives_.number());
  for (const int32_t rank : pipeline) {
    std::vector<bool> is_here(program_.units.size(), false);
    for (const Instruction& one : program_.ranks[static_cast<size_t>(rank)].instructions) {
      if (const int32_t layer = layer_of(program_, one); layer >= 0) {
        for (const int32_t number : units_of(layer)) {
          is_here[static_cast<size_t>(number)] = true;
        }
      }
    }
    for (size_t i = 0; i < is_here.size(); ++i) {
      if (is_here[i]) {
        holdings_[i].ranks.push_back(rank);
      }
    }
  }
}

void UnitCheck::find_holdings() {
  for (const ValueId id : lives_.rank().persistent) {
    if (id < 0 || static_cast<size_t>(id) >= lives_.rank().values.size()) {
      continue;  // begin() of the lives refuses it
    }
    const Value& value = lives_.value(id);
    if (value.kind == ValueKind::RankState) {
      rank_state_.push_back(id);
    }
    if (!info_of(value.kind).has_unit || static_cast<size_t>(value.unit) >= holdings_.size()) {
      continue;
    }
    Holding& held = holding(value.unit);
    ValueId& place = value.kind == ValueKind::Master        ? held.master
                     : value.kind == ValueKind::Compute     ? held.compute
                     : value.kind == ValueKind::GradientSum ? held.sum
                     : value.kind == ValueKind::State
                         ? held.state
                         : held.shares.try_emplace(value.layer, kNone).first->second;
    if (!held.is_own) {
      lives_.refuse("the rank holds ", lives_.name(id), " and runs no layer of its unit");
    }
    if (place != kNone) {
      lives_.refuse(lives_.name(id), " is held beside ", lives_.name(place), "; it is there once");
    }
    place = id;
  }
  for (size_t i = 0; i < holdings_.size(); ++i) {
    const Holding& held = holdings_[i];
    const auto number = static_cast<int32_t>(i);
    if (held.is_own && unit(number).is_frozen) {
      check_frozen(number);
    } else if (held.is_own && (held.master == kNone || held.sum == kNone || held.state == kNone)) {
      lives_.refuse("the rank works at ",
                    unit(number).name,
                    " and does not hold its weights, gradient and state");
    }
    if (held.is_own && !unit(number).is_frozen) {
      check_forms(number);
    }
    if (held.ranks.size() > 1 && !unit(number).is_shared) {
      lives_.refuse("several stages have ",
                    unit(number).name,
                    ", and its layers do not share its parameters");
    }
    for (const auto& [layer, share] : held.shares) {
      if (!unit(number).is_shared || !unit(number).has_layer(layer)) {
        lives_.refuse(lives_.name(share), " is a share of what no layers share");
      }
    }
  }
}

// Of what never moves there are weights alone. How replicas divide them: unit_check_division.cpp.
void UnitCheck::check_frozen(int32_t number) const {
  const Holding& held = holding(number);
  if (held.master == kNone) {
    lives_.refuse(
        "the rank works at frozen unit ", unit(number).name, " and does not hold its weights");
  }
  std::vector<ValueId> others{held.sum, held.state};
  for (const auto& [layer, share] : held.shares) {
    others.push_back(share);
  }
  for (const ValueId id : others) {
    if (id != kNone) {
      lives_.refuse("the rank holds ",
                    lives_.name(id),
                    ", and ",
                    unit(number).name,
                    " is frozen: it has neither gradient nor state");
    }
  }
  if (held.compute != kNone) {
    check_copy(held);
  }
  const bool is_seen = held.compute == kNone && program_.shard != Shard::Parameters;
  if (is_seen && !lives_.value(held.master).slices.empty()) {
    lives_.refuse(lives_.name(held.master), " has slices; it is there whole");
  }
}

void UnitCheck::check_copy(const Holding& held) const {
  if (!lives_.value(held.compute).slices.empty()) {
    lives_.refuse(lives_.name(held.compute), " has slices; it is there whole");
  }
  if (program_.shard == Shard::Parameters) {
    lives_.refuse(lives_.name(held.compute), " is a copy of what layers see gathered");
  }
}

// Which of them are whole, and which are the slices that the rank's step moves.
void UnitCheck::check_forms(int32_t number) const {
  const Holding& held = holding(number);
  const std::vector<Slice>& own = lives_.value(held.state).slices;
  const auto require_slices = [&](ValueId id, const std::vector<Slice>& wanted) {
    if (lives_.value(id).slices != wanted) {
      lives_.refuse(lives_.name(id),
                    wanted.empty() ? " has slices; it is there whole"
                                   : cat(" has other slices than ", lives_.name(held.state)));
    }
  };
  const std::vector<Slice> whole;
  if (held.compute != kNone) {
    check_copy(held);
  }
  require_slices(held.sum, program_.keeps_gradients() ? whole : own);
  for (const auto& [layer, share] : held.shares) {
    require_slices(share, program_.keeps_gradients() ? whole : own);
  }
  // Layers see weights that are whole: the copy, or the master itself.
  const bool may_be_whole = program_.shard != Shard::Parameters;
  const bool must_be_whole = may_be_whole && held.compute == kNone;
  if (must_be_whole || !(may_be_whole && lives_.value(held.master).slices.empty())) {
    require_slices(held.master, must_be_whole ? whole : own);
  }
}

bool UnitCheck::is_sharded(int32_t number) const {
  return program_.shard != Shard::None && holding(number).state != kNone;
}

bool UnitCheck::meets_replicas() const {
  return program_.replicas() > 1 && !has_own_gradients_;
}

int32_t UnitCheck::only_unit(const Instruction& instruction) const {
  if (instruction.units.size() != 1) {
    lives_.refuse("is of ", instruction.units.size(), " units; it takes one");
  }
  const int32_t number = instruction.units[0];
  if (number < 0 || static_cast<size_t>(number) >= program_.units.size()) {
    lives_.refuse("there is no unit ", number);
  }
  if (!holding(number).is_own) {
    lives_.refuse("the rank runs no layer of it");
  }
  return number;
}

void UnitCheck::refuse_frozen(int32_t number) const {
  if (unit(number).is_frozen) {
    lives_.refuse(unit(number).name, " is frozen: it has neither gradient nor state");
  }
}

void UnitCheck::require_read(const Instruction& instruction, ValueId id) const {
  if (!has(instruction.reads, id)) {
    lives_.refuse("does not read ", lives_.name(id));
  }
}

void UnitCheck::require_change(const Instruction& instruction, ValueId id, bool sets) const {
  if (!has(sets ? instruction.sets : instruction.updates, id)) {
    lives_.refuse(has(sets ? instruction.updates : instruction.sets, id)
                      ? (sets ? "updates what an earlier update has left in "
                              : "sets, and so loses, what is in ")
                      : (sets ? "does not set " : "does not update "),
                  lives_.name(id));
  }
}

// What layers see, from step to step.
std::vector<ValueId> UnitCheck::visible_weights(int32_t number) const {
  const Holding& held = holding(number);
  std::vector<ValueId> visible;
  if (held.compute != kNone) {
    visible.push_back(held.compute);
  }
  if (lives_.value(held.master).slices.empty()) {
    visible.push_back(held.master);
  }
  return visible;
}

size_t UnitCheck::check_weights(const Instruction& instruction,
                                int32_t number,
                                bool reads_copy) const {
  if (reads_copy) {
    return 0;
  }
  if (program_.shard == Shard::Parameters) {
    const auto gathered =
        std::find_if(instruction.reads.begin(), instruction.reads.end(), [&](ValueId id) {
          return lives_.value(id).kind == ValueKind::Gathered && lives_.value(id).unit == number;
        });
    if (gathered == instruction.reads.end()) {
      lives_.refuse("reads no gathered weights of ", unit(number).name);
    }
    if (gathered_after_[static_cast<size_t>(*gathered)] != holding(number).steps) {
      lives_.refuse("reads ", lives_.name(*gathered), ", which was gathered before a step");
    }
    return 1;
  }
  if (holding(number).is_partial) {
    lives_.refuse("reads the weights of ", unit(number).name, " before they are gathered again");
  }
  const std::vector<ValueId> visible = visible_weights(number);
  for (const ValueId id : visible) {
    require_read(instruction, id);
  }
  return visible.size();
}

RankLives::Counts UnitCheck::check_work(const Instruction& instruction,
                                        int32_t layer,
                                        bool reads_copy) {
  RankLives::Counts extra;
  if (work_.is_prepared) {
    lives_.refuse("comes after the update was prepared");
  }
  for (const int32_t number : units_of(layer)) {
    if (unit(number).is_needed_for(instruction.op, layer)) {
      extra.reads += check_weights(instruction, number, reads_copy);
    }
    const bool touches_gradient =
        instruction.op != Op::Forward && !program_.is_evaluation() && !unit(number).is_frozen;
    if (!touches_gradient) {
      continue;
    }
    if (program_.keeps_gradients()) {
      add_work(instruction, number, layer, target_of(number, layer));
      ++extra.changes;
      continue;
    }
    const auto is_bucket = [&](ValueId id) {
      const Value& value = lives_.value(id);
      return value.kind == ValueKind::Bucket && value.unit == number &&
             value.micro_batch == instruction.micro_batch;
    };
    const bool is_weight_gradient = instruction.op == Op::BackwardWeight;
    const std::vector<ValueId>& list = is_weight_gradient ? instruction.updates : instruction.makes;
    const auto bucket = std::find_if(list.begin(), list.end(), is_bucket);
    if (bucket == list.end()) {
      lives_.refuse(
          "does not ", is_weight_gradient ? "update" : "make", " a bucket of ", unit(number).name);
    }
    Parts& into = parts(*bucket);
    if (is_weight_gradient &&
        (lives_.maker(*bucket).op != Op::BackwardInput || into.layer != layer)) {
      lives_.refuse("updates ", lives_.name(*bucket), ", which its input gradient has not made");
    }
    into.layer = layer;
    if (contributes(instruction.op)) {
      into.has[part_index(number, layer, instruction.micro_batch)] = 1;
    }
    (is_weight_gradient ? extra.changes : extra.makes) += 1;
  }
  return extra;
}

// A step may move some units of the rank, and the next step the others. What is frozen is the same
// in every version.
std::optional<int32_t> UnitCheck::version_of(int32_t layer) const {
  std::vector<int32_t> units = units_of(layer);
  std::erase_if(units, [&](int32_t number) { return unit(number).is_frozen; });
  for (const int32_t number : units) {
    if (holding(number).steps != holding(units[0]).steps) {
      lives_.refuse("works with the weights of ",
                    unit(units[0]).name,
                    " after ",
                    holding(units[0]).steps,
                    " updates and those of ",
                    unit(number).name,
                    " after ",
                    holding(number).steps);
    }
  }
  return units.empty() ? std::nullopt : std::optional(holding(units[0]).steps);
}

void UnitCheck::check_peer(int32_t peer) const {
  if (program_.mesh.with(peer, comm::Axis::Pipeline, 0) !=
      program_.mesh.with(lives_.number(), comm::Axis::Pipeline, 0)) {
    lives_.refuse("rank ", peer, " is of another pipeline");
  }
}

void UnitCheck::check_stash(const Instruction& instruction) const {
  size_t reads = 0;
  for (size_t i = 0; i < holdings_.size(); ++i) {
    if (holdings_[i].is_own) {
      if (holdings_[i].steps != update_ && !program_.units[i].is_frozen) {
        lives_.refuse("copies the weights of ",
                      program_.units[i].name,
                      " after ",
                      holdings_[i].steps,
                      " updates and others after ",
                      update_);
      }
      for (const ValueId id : visible_weights(static_cast<int32_t>(i))) {
        require_read(instruction, id);
        ++reads;
      }
    }
  }
  lives_.check_counts(instruction, {.reads = reads, .makes = 1});
}

}  // namespace penstock::program
