// What verify() demands of an update: the squares of complete gradients, what replicas exchange
// beside gradients and weights, and the step.
#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/program/unit_check.h"
#include "penstock/program/unit_check_shared.h"

namespace penstock::program {

namespace {

// Sums that every rank of a group gets of the others.
struct Sums {
  ValueKind own, all;
  bool is_of_replicas;
};
constexpr Sums kSums[] = {{ValueKind::Squares, ValueKind::AllSquares, false},
                          {ValueKind::Sketches, ValueKind::AllSketches, true},
                          {ValueKind::Lengths, ValueKind::AllLengths, true}};

}  // namespace

// Those that move.
template <typename Use>
size_t UnitCheck::for_own_units(const Use& use) {
  size_t count = 0;
  for (size_t i = 0; i < holdings_.size(); ++i) {
    if (moves(static_cast<int32_t>(i))) {
      use(static_cast<int32_t>(i), holdings_[i]);
      ++count;
    }
  }
  return count;
}

ValueId UnitCheck::find_of_update(const std::vector<ValueId>& list, ValueKind kind) const {
  const auto found = std::find_if(list.begin(), list.end(), [&](ValueId id) {
    return lives_.value(id).kind == kind && lives_.value(id).version == update_;
  });
  return found == list.end() ? kNone : *found;
}

void UnitCheck::require_replicas() const {
  if (program_.replicas() == 1 || program_.units.empty()) {
    lives_.refuse("there are no replicas");
  }
}

void UnitCheck::require_unmoved(const Holding& held) const {
  if (held.steps > update_) {
    lives_.refuse("comes between the steps of one update");
  }
}

void UnitCheck::gather_of_no_unit(const Instruction& instruction) {
  if (static_cast<size_t>(instruction.group) >= program_.groups.size()) {
    lives_.refuse("there is no group ", instruction.group);
  }
  if (instruction.micro_batch != -1) {
    lives_.refuse("it is of all micro-batches, and names one");
  }
  const bool fills =
      std::any_of(instruction.makes.begin(), instruction.makes.end(), [&](ValueId id) {
        return lives_.value(id).kind == ValueKind::Filled;
      });
  if (fills) {
    return gather_state(instruction);
  }
  lives_.check_counts(instruction, {.reads = 1, .makes = 1});
  const ValueId own = instruction.reads[0], all = instruction.makes[0];
  const auto* const sums = std::find_if(std::begin(kSums), std::end(kSums), [&](const Sums& one) {
    return one.own == lives_.value(own).kind && one.all == lives_.value(all).kind;
  });
  if (sums == std::end(kSums) || lives_.value(own).version != lives_.value(all).version) {
    lives_.refuse("is of no unit; then it takes sums or squares and makes those of all ranks");
  }
  require_group(instruction, sums->is_of_replicas ? comm::along(comm::Axis::Data) : comm::all());
  if (sums->is_of_replicas && !work_.gathered.insert(own).second) {
    lives_.refuse("gathers ", lives_.name(own), " a second time");
  }
  if (sums->all == ValueKind::AllLengths) {
    work_.all_lengths = all;
  }
}

// What an optimizer needs of its replicas' state before it averages anything with them.
void UnitCheck::gather_state(const Instruction& instruction) {
  require_replicas();
  require_group(instruction, comm::along(comm::Axis::Data));
  if (program_.shard == Shard::None || !program_.keeps_gradients()) {
    lives_.refuse("every replica has the state that it needs");
  }
  if (work_.filled != kNone) {
    lives_.refuse("gathers the state a second time");
  }
  if (work_.is_prepared) {
    lives_.refuse("comes after what it is for was prepared");
  }
  const size_t own = for_own_units([&](int32_t, const Holding& held) {
    require_unmoved(held);
    require_change(instruction, held.state, /*sets=*/false);
  });
  lives_.check_counts(instruction, {.makes = 1, .changes = own});
  work_.filled = find_of_update(instruction.makes, ValueKind::Filled);
  if (work_.filled == kNone) {
    lives_.refuse("does not make f.", update_);
  }
}

void UnitCheck::check_sketch(const Instruction& instruction) {
  require_replicas();
  if (!program_.keeps_gradients()) {
    lives_.refuse("no replica has its gradients whole");
  }
  if (std::exchange(work_.is_sketched, true)) {
    lives_.refuse("sketches the gradients a second time");
  }
  const size_t own = for_own_units([&](int32_t number, const Holding& held) {
    require_complete(number);
    require_read(instruction, held.sum);
  });
  lives_.check_counts(instruction, {.reads = own, .makes = 1});
  if (find_of_update(instruction.makes, ValueKind::Sketches) == kNone) {
    lives_.refuse("does not make h.", update_);
  }
}

// Of the rank's gradients, or of what sketches tell of those of all replicas.
void UnitCheck::check_squares(const Instruction& instruction) {
  size_t reads = 1;
  if (!has_own_gradients_) {
    reads = for_own_units([&](int32_t number, const Holding& held) {
      require_complete(number);
      require_read(instruction, held.sum);
    });
  } else if (find_of_update(instruction.reads, ValueKind::AllSketches) == kNone) {
    lives_.refuse("does not read j.", update_, ", the sketches of all replicas");
  }
  lives_.check_counts(instruction, {.reads = reads, .makes = 1});
  const Value& made = lives_.value(instruction.makes[0]);
  if (made.kind != ValueKind::Squares || made.version != update_) {
    lives_.refuse("does not make q.", update_);
  }
}

void UnitCheck::check_decide(const Instruction& instruction) {
  lives_.check_counts(instruction, {.reads = 1, .makes = 1});
  const Value& squares = lives_.value(instruction.reads[0]);
  const Value& made = lives_.value(instruction.makes[0]);
  const bool is_together = program_.ranks.size() > 1 && program_.updates == 1;
  const ValueKind wanted = is_together ? ValueKind::AllSquares : ValueKind::Squares;
  if (squares.kind != wanted || squares.version != update_) {
    lives_.refuse("reads ",
                  lives_.name(instruction.reads[0]),
                  is_together ? "; it takes the squares of all ranks of this update"
                              : "; it takes the rank's squares of this update");
  }
  if (made.kind != ValueKind::Decision || made.version != update_) {
    lives_.refuse("does not make n.", update_);
  }
}

// What becomes the average of all replicas, beside the optimizer's state: the gradients, the
// weights, or nothing, which is to say the momentum in the state.
ValueKind UnitCheck::averaged_kind(const Instruction& instruction) const {
  for (const ValueId id : instruction.updates) {
    const ValueKind kind = lives_.value(id).kind;
    if (kind == ValueKind::GradientSum || kind == ValueKind::Master) {
      return kind;
    }
  }
  return ValueKind::State;
}

void UnitCheck::check_prepare(const Instruction& instruction) {
  require_replicas();
  if (std::exchange(work_.is_prepared, true)) {
    lives_.refuse("prepares the update a second time");
  }
  work_.prepared = find_of_update(instruction.makes, ValueKind::Prepared);
  work_.lengths = find_of_update(instruction.makes, ValueKind::Lengths);
  const bool gives = work_.prepared != kNone, measures = work_.lengths != kNone;
  if (!gives && (!measures || has_own_gradients_)) {
    lives_.refuse("does not make ", has_own_gradients_ ? "r." : "l.", update_);
  }
  if (gives && (program_.is_apart || !has_own_gradients_)) {
    lives_.refuse(program_.is_apart ? "makes ready an average, and replicas move apart"
                                    : "makes ready an average of what was reduced");
  }
  if (measures && program_.shard == Shard::None) {
    lives_.refuse("measures slices, and nothing is sharded");
  }
  const ValueKind averaged = averaged_kind(instruction);
  if (averaged == ValueKind::Master && program_.shard != Shard::None) {
    lives_.refuse("averages weights, and replicas divide what they move");
  }
  RankLives::Counts counts{.reads = 1, .makes = size_t{gives} + size_t{measures}};
  if (find_of_update(instruction.reads, ValueKind::Decision) == kNone) {
    lives_.refuse("does not read n.", update_);
  }
  if (work_.filled != kNone) {
    require_read(instruction, work_.filled);
    ++counts.reads;
  }
  for_own_units([&](int32_t number, const Holding& held) {
    require_unmoved(held);
    require_complete(number);
    require_change(instruction, held.state, /*sets=*/false);
    ++counts.changes;
    if (gives && averaged != ValueKind::State) {
      const bool is_gradient = averaged == ValueKind::GradientSum;
      require_change(instruction, is_gradient ? held.sum : held.master, /*sets=*/false);
      ++counts.changes;
    }
    if (!gives || averaged != ValueKind::GradientSum) {
      require_read(instruction, held.sum);
      ++counts.reads;
    }
  });
  for (const ValueId id : gives ? rank_state_ : std::vector<ValueId>()) {
    require_change(instruction, id, /*sets=*/false);
    ++counts.changes;
  }
  lives_.check_counts(instruction, counts);
  work_.changed.insert(instruction.updates.begin(), instruction.updates.end());
}

void UnitCheck::check_exchange(const Instruction& instruction) {
  require_replicas();
  require_group(instruction, comm::along(comm::Axis::Data));
  lives_.check_counts(instruction, {.reads = 1, .changes = work_.changed.size()});
  if (work_.prepared == kNone || instruction.reads[0] != work_.prepared) {
    lives_.refuse("does not read r.", update_);
  }
  if (std::exchange(work_.is_averaged, true)) {
    lives_.refuse("averages ", lives_.name(work_.prepared), " a second time");
  }
  for (const ValueId id : work_.changed) {
    require_change(instruction, id, /*sets=*/false);
  }
}

// What replicas need of each other's gradients and slices is there.
void UnitCheck::check_exchanged(const Instruction& step, RankLives::Counts& counts) const {
  if (program_.is_apart && !has_own_gradients_) {
    lives_.refuse("replicas move apart, and not by their own gradients");
  }
  if (has_own_gradients_ && !program_.is_apart && !work_.is_averaged) {
    lives_.refuse("the gradients of the replicas are not averaged");
  }
  if (work_.lengths != kNone) {
    if (work_.all_lengths == kNone) {
      lives_.refuse(lives_.name(work_.lengths), " is not gathered");
    }
    require_read(step, work_.all_lengths);
    ++counts.reads;
  }
}

bool UnitCheck::check_step(const Instruction& instruction, const RankLives::Counts& others) {
  if (program_.units.empty()) {
    ++update_;
    return true;
  }
  RankLives::Counts counts{.reads = 1, .changes = others.changes};
  if (find_of_update(instruction.reads, ValueKind::Decision) == kNone) {
    lives_.refuse("does not read n.", update_);
  }
  bool has_units = false;
  for (size_t i = 0; i < holdings_.size(); ++i) {
    has_units = has_units || moves(static_cast<int32_t>(i));
  }
  if (instruction.units.empty() == has_units || !is_ascending(instruction.units)) {
    lives_.refuse("moves no units, or names them out of order");
  }
  for (const int32_t number : instruction.units) {
    move_unit(instruction, number, counts);
  }
  for (const ValueId id : rank_state_) {
    require_change(instruction, id, /*sets=*/false);
    ++counts.changes;
  }
  check_exchanged(instruction, counts);
  lives_.check_counts(instruction, counts);
  bool ends_update = true;
  for (size_t i = 0; i < holdings_.size(); ++i) {
    ends_update = ends_update && (!moves(static_cast<int32_t>(i)) || holdings_[i].steps > update_);
  }
  if (ends_update) {
    ++update_;
    work_ = {};
  }
  return ends_update;
}

void UnitCheck::move_unit(const Instruction& instruction,
                          int32_t number,
                          RankLives::Counts& counts) {
  if (number < 0 || static_cast<size_t>(number) >= program_.units.size()) {
    lives_.refuse("there is no unit ", number);
  }
  Holding& held = holding(number);
  if (!held.is_own) {
    lives_.refuse("the rank runs no layer of ", unit(number).name);
  }
  refuse_frozen(number);
  if (held.steps > update_) {
    lives_.refuse("moves ", unit(number).name, " a second time");
  }
  require_complete(number);
  require_read(instruction, held.sum);
  ++counts.reads;
  for (const ValueId id : {held.master, held.compute, held.state}) {
    if (id != kNone) {
      require_change(instruction, id, /*sets=*/false);
      ++counts.changes;
    }
  }
  ++held.steps;
  held.is_partial = is_sharded(number) && program_.shard != Shard::Parameters;
}

}  // namespace penstock::program
