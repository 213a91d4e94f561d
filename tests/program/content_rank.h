// One rank of a program, by what its values contain: what its instructions need, make and change
// without other ranks. It is built up by subject: its values (content_rank_values.h), its work at
// layers (content_rank_layers.h), what precedes a step (content_rank_prepare.h), and here the step
// and what it leaves. Exchanges between ranks are in content_interpreter.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "penstock/program/program.h"

#include "program/content.h"
#include "program/content_facts.h"
#include "program/content_rank_prepare.h"

namespace penstock::test {

class RankContents : public RankPreparation {
 public:
  using RankPreparation::RankPreparation;

  // What needs no other rank.
  void work(const Instruction& one) {
    begin_work(one);
    switch (one.op) {
      case Op::Forward:
        forward(one);
        break;
      case Op::Loss:
        lose(one);
        break;
      case Op::Backward:
      case Op::BackwardInput:
        go_backward(one);
        break;
      case Op::BackwardWeight:
        go_backward_for_weights(one);
        break;
      case Op::Drop:
        break;
      case Op::Stash:
        stash(one);
        break;
      case Op::Add:
        add_share(one);
        break;
      case Op::Sketch:
        sketch(one);
        break;
      case Op::Squares:
        square(one);
        break;
      case Op::Decide:
        decide(one);
        break;
      case Op::Prepare:
        prepare(one);
        break;
      case Op::Step:
        step(one);
        break;
      default:
        harm("no work of one rank");
    }
    end_work(one);
  }

  // When all ranks are done: exactly what a plain step leaves.
  void finish() const {
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (lives_[i] == Life::Live && !has(rank_.persistent, static_cast<ValueId>(i))) {
        harm("holds a value for ever");
      }
    }
    if (updates_done_ != facts_.program().updates) {
      harm("has ", updates_done_, " updates");
    }
    for (const ValueId id : rank_.persistent) {
      check_end_of(id);
    }
    if (facts_.is_evaluation()) {
      check_losses();
    }
  }

 private:
  void step(const Instruction& one) {
    commit_layer_state(one);
    if (facts_.program().units.empty()) {
      if (!one.units.empty()) {
        harm("has no such unit");
      }
      return end_update();  // nobody asks what it moves
    }
    const ValueId decision =
        find(one.reads, [](const Value& value) { return value.kind == ValueKind::Decision; });
    if (decision < 0 || one.units.empty() != facts_.moving_units(number_).empty()) {
      harm("decides nothing, or moves nothing");
    }
    for (const int32_t number : one.units) {
      if (!has(facts_.moving_units(number_), number)) {
        harm("has no such unit");
      }
      move_unit(one, number, content(decision));
    }
    for (const auto* list : {&one.sets, &one.updates}) {
      for (const ValueId id : *list) {
        if (value(id).kind == ValueKind::RankState) {
          move_rank_state(one, id);
        }
      }
    }
    const auto has_moved = [&](int32_t number) { return moves_[number] > updates_done_; };
    if (std::all_of(
            facts_.moving_units(number_).begin(), facts_.moving_units(number_).end(), has_moved)) {
      end_update();
    }
  }

  // What forwards have left is what the next update begins with.
  void commit_layer_state(const Instruction& one) {
    for (const ValueId id : changes(one)) {
      if (value(id).kind != ValueKind::LayerState) {
        continue;
      }
      if (change(one, id)) {
        spoil(id);
      }
      Content& state = content(id);
      state.committed.add(state.gradient, 0);
      state.gradient.clear(0);
    }
  }

  // Each element that the rank has in its charge goes from one update to the next, if all is there:
  // weights, state, gradient and decision of the same update. Otherwise nobody knows what it is.
  void move_unit(const Instruction& one, int32_t number, const Content& decision) {
    ++moves_[number];
    const ValueId sum = find_of_unit(one.reads, ValueKind::GradientSum, number);
    const std::vector<ValueId> changed = changes(one);
    const ValueId master = find_of_unit(changed, ValueKind::Master, number);
    const ValueId copy = find_of_unit(changed, ValueKind::Compute, number);
    const ValueId state = find_of_unit(changed, ValueKind::State, number);
    if (sum < 0 || master < 0 || state < 0) {
      harm("lacks what it moves");
    }
    const std::vector<bool> moved = facts_.moved(number_, number);
    const std::vector<bool> has_sum = elements_of(unit(number), value(sum).slices);
    const std::vector<bool> has_master = elements_of(unit(number), value(master).slices);
    const std::vector<int32_t> before = content(master).updates;
    const Content state_before = content(state);
    const bool is_measured = !measures_ || has_lengths(one, number, decision.update);
    // Each by its own gradients, or by an average that stands for them: the norm is estimated.
    const bool is_average = state_before.prepared > Content::Prepared::Lengths;
    const bool is_apart = facts_.program().is_apart;
    const int32_t decided =
        decision.is_estimate == (is_average || is_apart) && is_measured && !(is_average && is_apart)
            ? decision.update
            : kUnknown;
    for (const ValueId id : {master, state, copy}) {
      if (id >= 0 && change(one, id)) {
        spoil(id);
      }
    }
    const bool is_lost = has(one.sets, master) || has(one.sets, state);
    for (size_t element = 0; element < moved.size(); ++element) {
      if (!moved[element]) {
        continue;
      }
      const int32_t update = before[element];
      const bool is_right = !is_lost && update >= 0 && has_master[element] && has_sum[element] &&
                            state_before.updates[element] == update && decided == update &&
                            taken_in(state_before, content(sum).gradient, element) == update;
      for (const ValueId id : {master, state, copy}) {
        if (id >= 0) {
          content(id).updates[element] = is_right ? update + 1 : kUnknown;
        }
      }
    }
  }
  // The update whose gradients an element moves by.
  int32_t taken_in(const Content& state, const Gradient& gradient, size_t element) const {
    if (state.prepared > Content::Prepared::Lengths) {
      return state.averaged.empty() ? kUnknown : state.averaged[element];
    }
    return facts_.program().is_apart ? facts_.own_update_of(gradient, element, number_)
                                     : facts_.update_of(gradient, element);
  }
  // It knows the sums over all slices of a unit, each once.
  bool has_lengths(const Instruction& one, int32_t number, int32_t update) {
    const ValueId lengths = find_kind(one.reads, ValueKind::AllLengths);
    for (size_t element = 0; lengths >= 0 && element < num_elements(unit(number)); ++element) {
      std::vector<int32_t> known;
      for (const auto& of_replica : content(lengths).squares) {
        const std::vector<int32_t>& part = of_replica[static_cast<size_t>(number)];
        if (element < part.size() && part[element] != kAbsent) {
          known.push_back(part[element]);
        }
      }
      if (known.size() != 1 || known[0] != update) {
        return false;
      }
    }
    return lengths >= 0;
  }
  void move_rank_state(const Instruction& one, ValueId id) {
    if (change(one, id)) {
      spoil(id);
    }
    for (const int32_t number : one.units) {
      int32_t& updates = content(id).updates[static_cast<size_t>(number)];
      updates = updates == updates_done_ ? updates + 1 : kUnknown;
    }
  }

  // What the rank's layers did since the last update is all that this one takes.
  void end_update() {
    const size_t first = static_cast<size_t>(updates_done_) * facts_.batch();
    const auto own = static_cast<size_t>(replica());
    for (int32_t layer = 0; layer <= facts_.loss_index(); ++layer) {
      Gradient& done = done_[static_cast<size_t>(layer)];
      if (facts_.works_at(number_, layer) &&
          !done.is_exactly(0, first, first + facts_.batch(), own, own + 1)) {
        harm("updates with other work than that of the update");
      }
      done.clear(0);
    }
    for (const int32_t number : facts_.moving_units(number_)) {
      if (const ValueId state = facts_.held(number_, ValueKind::State, number); state >= 0) {
        content(state).prepared = Content::Prepared::No;
        content(state).averaged.clear();
      }
    }
    filled_ = -1;
    measures_ = false;
    ++updates_done_;
  }

  void check_end_of(ValueId id) const {
    const Value& says = value(id);
    const Content& found = contents_[static_cast<size_t>(id)];
    const int32_t updates = facts_.program().updates;
    const auto is_right = [&](int32_t one) { return one == updates; };
    if (says.kind == ValueKind::Master || says.kind == ValueKind::Compute ||
        says.kind == ValueKind::State) {
      const int32_t moves = unit(says.unit).is_frozen ? 0 : updates;
      const std::vector<bool> is_there = elements_of(unit(says.unit), says.slices);
      for (size_t element = 0; element < is_there.size(); ++element) {
        if (is_there[element] && found.updates[element] != moves) {
          harm("ends with other weights or state than a plain step");
        }
      }
      if (says.kind == ValueKind::Compute && !says.slices.empty()) {
        harm("layers see a part of the weights");
      }
    } else if (says.kind == ValueKind::LayerState && !facts_.is_evaluation()) {
      // The first forward of each micro-batch of all replicas, and nothing after the last step.
      if (!found.committed.is_exactly(0, 0, facts_.micro_batches(), 0, facts_.replicas()) ||
          !found.gradient.is_exactly(0, 0, 0, 0, 0)) {
        harm("ends with other state of a layer than a plain step");
      }
    } else if (says.kind == ValueKind::RankState) {
      const std::vector<int32_t>& own = facts_.moving_units(number_);
      if (!std::all_of(own.begin(), own.end(), [&](int32_t number) {
            return is_right(found.updates[static_cast<size_t>(number)]);
          })) {
        harm("ends with other state of the rank than a plain step");
      }
    }
  }

  // Of an evaluation: each micro-batch's once, where the rank has the loss.
  void check_losses() const {
    const auto own = static_cast<size_t>(replica());
    const size_t end = facts_.works_at(number_, facts_.loss_index()) ? facts_.batch() : 0;
    if (!done_.back().is_exactly(0, 0, end, own, own + 1)) {
      harm("has another loss than that of all micro-batches");
    }
  }
};

}  // namespace penstock::test
