// What verify() demands of collectives: gathers of weights, reduces of gradients over replicas and
// stages, their groups, and what comes before and after them.
#include <algorithm>
#include <vector>

#include "penstock/program/unit_check.h"
#include "penstock/program/unit_check_shared.h"

namespace penstock::program {

void UnitCheck::require_group(const Instruction& instruction, const comm::RankGroup& group) const {
  const auto index = static_cast<size_t>(instruction.group);
  if (index >= program_.groups.size()) {
    lives_.refuse("there is no group ", instruction.group);
  }
  const comm::RankGroup& found = program_.groups[index];
  if (comm::members(program_.mesh, found, lives_.number()) !=
      comm::members(program_.mesh, group, lives_.number())) {
    lives_.refuse("is over ", found.name, "; it takes the ranks of ", group.name);
  }
}

void UnitCheck::check_gather(const Instruction& instruction) {
  if (instruction.units.empty()) {
    return gather_of_no_unit(instruction);
  }
  const int32_t number = only_unit(instruction);
  require_group(instruction, comm::along(comm::Axis::Data));
  Holding& held = holding(number);
  if (program_.replicas() == 1 || program_.shard == Shard::None) {
    lives_.refuse("every replica has and moves all weights; there is nothing to gather");
  }
  if (program_.shard == Shard::Parameters) {
    lives_.check_counts(instruction, {.reads = 1, .makes = 1});
    require_read(instruction, held.master);
    const Value& made = lives_.value(instruction.makes[0]);
    if (made.kind != ValueKind::Gathered || made.unit != number ||
        made.micro_batch != instruction.micro_batch) {
      lives_.refuse("does not make p", number, ".", instruction.micro_batch);
    }
    gathered_after_[static_cast<size_t>(instruction.makes[0])] = held.steps;
    return;
  }
  if (instruction.micro_batch != -1) {
    lives_.refuse("it is of all micro-batches, and names one");
  }
  if (unit(number).is_frozen) {
    lives_.refuse(unit(number).name, " is frozen: no replica moves it, and all have all of it");
  }
  if (!held.is_partial) {
    lives_.refuse(held.steps == 0
                      ? "comes before the step; until then every replica has all weights"
                      : "is gathered a second time after the step");
  }
  const bool has_copy = held.compute != kNone;
  lives_.check_counts(instruction, {.reads = has_copy ? size_t{1} : 0, .changes = 1});
  if (has_copy) {
    require_read(instruction, held.master);
  }
  require_change(instruction, has_copy ? held.compute : held.master, /*sets=*/false);
  held.is_partial = false;
}

void UnitCheck::check_reduce(const Instruction& instruction) {
  const int32_t number = only_unit(instruction);
  refuse_frozen(number);
  const auto index = static_cast<size_t>(instruction.group);
  if (index >= program_.groups.size()) {
    lives_.refuse("there is no group ", instruction.group);
  }
  if (!program_.groups[index].axes.contains(comm::Axis::Pipeline)) {
    if (program_.replicas() == 1) {
      lives_.refuse("there are no replicas");
    }
    if (has_own_gradients_) {
      lives_.refuse("replicas sketch their own gradients; they are not reduced");
    }
    require_group(instruction, comm::along(comm::Axis::Data));
    return program_.keeps_gradients() ? reduce_over_replicas(instruction, number)
                                      : reduce_bucket(instruction, number);
  }
  reduce_over_stages(instruction, number);
}

void UnitCheck::reduce_over_replicas(const Instruction& instruction, int32_t number) {
  if (instruction.micro_batch != -1) {
    lives_.refuse("it is of all micro-batches, and names one");
  }
  lives_.check_counts(instruction, {.changes = 1});
  const ValueId sum = holding(number).sum;
  require_change(instruction, sum, /*sets=*/false);
  require_local_parts(sum, number, -1);
  if (instruction.scatters != (program_.shard != Shard::None)) {
    lives_.refuse(instruction.scatters ? "scatters, and every replica needs the whole sum"
                                       : "gives the whole sum, and replicas need their slices");
  }
  if (parts(sum).is_reduced) {
    lives_.refuse("is reduced a second time");
  }
  parts(sum).is_reduced = true;
}

void UnitCheck::reduce_bucket(const Instruction& instruction, int32_t number) {
  lives_.check_counts(instruction, {.reads = 1, .changes = 1});
  const ValueId bucket = instruction.reads[0];
  const Value& value = lives_.value(bucket);
  if (value.kind != ValueKind::Bucket || value.unit != number ||
      value.micro_batch != instruction.micro_batch) {
    lives_.refuse("does not read a bucket of ", unit(number).name);
  }
  if (!instruction.scatters) {
    lives_.refuse("gives the whole sum, and replicas need their slices");
  }
  Parts& from = parts(bucket);
  const size_t part = part_index(number, from.layer, value.micro_batch);
  if (from.has[part] == 0) {
    lives_.refuse("comes before the weight gradient that adds to ", lives_.name(bucket));
  }
  if (from.is_done) {
    lives_.refuse("reduces ", lives_.name(bucket), " a second time");
  }
  from.is_done = true;
  const ValueId target = target_of(number, from.layer);
  Parts& into = parts(target);
  if (into.is_done || into.is_exchanged) {
    lives_.refuse("adds to ", lives_.name(target), " after it was added up");
  }
  // Buckets are whole units, so the first sets all of the rank's slices.
  const bool is_first =
      std::none_of(into.begun.begin(), into.begun.end(), [](uint8_t begun) { return begun != 0; });
  require_change(instruction, target, /*sets=*/is_first);
  std::fill(into.begun.begin(), into.begun.end(), uint8_t{1});
  into.has[part] = 1;
  into.is_reduced = true;
}

void UnitCheck::reduce_over_stages(const Instruction& instruction, int32_t number) {
  if (holding(number).ranks.size() < 2) {
    lives_.refuse("no other stage has ", unit(number).name);
  }
  const comm::RankGroup& group = program_.groups[static_cast<size_t>(instruction.group)];
  if (comm::members(program_.mesh, group, lives_.number()) != holding(number).ranks) {
    lives_.refuse("is over ",
                  group.name,
                  "; it takes the ranks of this pipeline that have ",
                  unit(number).name);
  }
  // Of gradients that are sharded each rank has its slices alone.
  for (const int32_t rank : holding(number).ranks) {
    const auto* theirs = owned_slices(program_.ranks[static_cast<size_t>(rank)], number);
    if (theirs == nullptr || *theirs != lives_.value(holding(number).state).slices) {
      lives_.refuse("rank ", rank, " moves other slices of ", unit(number).name);
    }
  }
  if (instruction.scatters || instruction.micro_batch != -1) {
    lives_.refuse("stages need the whole sum of all micro-batches");
  }
  lives_.check_counts(instruction, {.changes = 1});
  const ValueId sum = holding(number).sum;
  require_change(instruction, sum, /*sets=*/false);
  require_local_parts(sum, number, -1);
  if (meets_replicas() && !parts(sum).is_reduced) {
    lives_.refuse("the gradients of ", unit(number).name, " are not reduced over the replicas");
  }
  if (parts(sum).is_exchanged) {
    lives_.refuse("is reduced a second time");
  }
  parts(sum).is_exchanged = true;
}

void UnitCheck::check_frees(const Instruction& instruction) const {
  // A gather or reduce on a line may still run when the rank goes on.
  if (instruction.resource.kind == ResourceKind::Line && !instruction.frees.empty()) {
    lives_.refuse(
        "frees ", lives_.name(instruction.frees[0]), "; what runs on a line frees nothing");
  }
  for (const ValueId id : instruction.frees) {
    if (lives_.value(id).kind == ValueKind::Bucket && !parts_[static_cast<size_t>(id)].is_done) {
      lives_.refuse("frees ", lives_.name(id), ", which was not reduced");
    }
  }
}

void UnitCheck::check_end() const {
  for (size_t i = 0; i < holdings_.size(); ++i) {
    if (holdings_[i].is_partial) {
      lives_.refuse("what replicas moved of ", program_.units[i].name, " is not gathered");
    }
  }
}

}  // namespace penstock::program
