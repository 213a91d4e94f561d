// What verify() demands of gradients within a rank: which parts each has, when work may add to it,
// and that it is complete before it is used.
#include <algorithm>
#include <string>
#include <vector>

#include "penstock/program/unit_check.h"

namespace penstock::program {

UnitCheck::Parts& UnitCheck::parts(ValueId id) {
  Parts& found = parts_[static_cast<size_t>(id)];
  if (found.update != update_) {
    const Unit& of = unit(lives_.value(id).unit);
    const size_t count = of.layers.size();
    found = {.has = std::vector<uint8_t>(count * static_cast<size_t>(program_.micro_batches), 0),
             .begun = std::vector<uint8_t>(count, 0),
             .update = update_};
  }
  return found;
}

size_t UnitCheck::part_index(int32_t number, int32_t layer, int32_t micro_batch) const {
  const std::vector<int32_t>& layers = unit(number).layers;
  const auto at = std::lower_bound(layers.begin(), layers.end(), layer) - layers.begin();
  return static_cast<size_t>(at) * static_cast<size_t>(program_.micro_batches) +
         static_cast<size_t>(micro_batch);
}

// Where a layer's work adds its gradient.
ValueId UnitCheck::target_of(int32_t number, int32_t layer) const {
  const auto share = holding(number).shares.find(layer);
  return share == holding(number).shares.end() ? holding(number).sum : share->second;
}

// The first work of an update at a layer sets its part of the gradient, later work adds to it; all
// of a gradient that layers share is one part.
void UnitCheck::add_work(const Instruction& instruction,
                         int32_t number,
                         int32_t layer,
                         ValueId target) {
  Parts& into = parts(target);
  const std::vector<int32_t>& layers = unit(number).layers;
  const bool is_one_part =
      unit(number).is_shared && lives_.value(target).kind == ValueKind::GradientSum;
  const auto at = static_cast<size_t>(
      is_one_part ? 0 : std::lower_bound(layers.begin(), layers.end(), layer) - layers.begin());
  require_change(instruction, target, /*sets=*/into.begun[at] == 0);
  into.begun[at] = 1;
  if (into.is_reduced || into.is_exchanged || into.is_done) {
    lives_.refuse(
        "adds to ", lives_.name(target), " after it was ", into.is_done ? "added up" : "reduced");
  }
  if (contributes(instruction.op)) {
    into.has[part_index(number, layer, instruction.micro_batch)] = 1;
  }
}

// All parts that this rank adds to a gradient, or those of one layer.
void UnitCheck::require_local_parts(ValueId id, int32_t number, int32_t layer) {
  const Parts& found = parts(id);
  const int32_t count = program_.micro_batches / program_.updates;
  for (const int32_t one : unit(number).layers) {
    const bool is_elsewhere = lives_.value(id).kind == ValueKind::Share && one != layer;
    const bool is_here = !is_elsewhere && works_at(one);
    for (int32_t i = 0; is_here && i < count; ++i) {
      const int32_t micro_batch = update_ * count + i;
      if (found.has[part_index(number, one, micro_batch)] == 0) {
        lives_.refuse(lives_.name(id),
                      " lacks the part of micro-batch ",
                      micro_batch,
                      " at ",
                      one == program_.loss_index()
                          ? std::string("the loss")
                          : program_.layers[static_cast<size_t>(one)].name);
      }
    }
  }
}

void UnitCheck::check_add(const Instruction& instruction) {
  const int32_t number = only_unit(instruction);
  refuse_frozen(number);
  const auto share = holding(number).shares.find(instruction.layer);
  if (share == holding(number).shares.end()) {
    lives_.refuse("the rank has no share of layer ", instruction.layer);
  }
  lives_.check_counts(instruction, {.reads = 1, .changes = 1});
  const ValueId sum = holding(number).sum;
  require_read(instruction, share->second);
  require_change(instruction, sum, /*sets=*/false);
  require_local_parts(share->second, number, instruction.layer);
  Parts& from = parts(share->second);
  Parts& into = parts(sum);
  if (from.is_done) {
    lives_.refuse("adds ", lives_.name(share->second), " a second time");
  }
  const bool was_reduced_alone = program_.keeps_gradients() && into.is_reduced;
  if (was_reduced_alone || into.is_exchanged ||
      std::none_of(into.begun.begin(), into.begun.end(), [](uint8_t one) { return one != 0; })) {
    lives_.refuse("adds to ", lives_.name(sum), " before it has parts, or after it was added up");
  }
  for (size_t i = 0; i < into.has.size(); ++i) {
    into.has[i] = static_cast<uint8_t>(into.has[i] | from.has[i]);
  }
  from.is_done = true;
}

void UnitCheck::require_complete(int32_t number) {
  const Holding& held = holding(number);
  require_local_parts(held.sum, number, -1);
  if (meets_replicas() && !parts(held.sum).is_reduced) {
    lives_.refuse("the gradients of ", unit(number).name, " are not reduced");
  }
  if (held.ranks.size() > 1 && !parts(held.sum).is_exchanged) {
    lives_.refuse(
        "the gradients of ", unit(number).name, " are not added up over the stages that have it");
  }
}

}  // namespace penstock::program
