// What a rank does at layers: with which weights it works, what it makes for other layers, and
// where it adds its part of the gradients.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "penstock/program/program.h"

#include "program/content.h"
#include "program/content_facts.h"
#include "program/content_rank_values.h"

namespace penstock::test {

class RankLayers : public RankValues {
 public:
  RankLayers(const ContentFacts& facts, int32_t number)
      : RankValues(facts, number),
        done_(static_cast<size_t>(facts.loss_index()) + 1,
              Gradient(1, 1, facts.replicas(), facts.micro_batches())) {}

  int32_t updates_done() const { return updates_done_; }

 protected:
  // What the input gradient leaves may lie in what that has read: it must be there.
  void go_backward_for_weights(const Instruction& one) {
    check_place(one);
    for (const ValueId id : need(one, ValueKind::WeightWork, one.layer).lies_in) {
      if (!has(one.reads, id)) {
        harm("needs what may be gone");
      }
    }
    for (const int32_t number : facts_.units_at(one.layer)) {
      if (has(unit(number).weight_too, one.layer)) {
        meet_version(one, one.layer, number, see(one, number));
      }
    }
    contribute(one, one.layer, {1});
  }

  void check_place(const Instruction& one) const {
    if (one.layer < 0 || one.layer >= facts_.loss_index()) {
      harm("there is no such layer");
    }
    check_micro_batch(one);
  }
  void check_micro_batch(const Instruction& one) const {
    if (one.micro_batch < 0 || static_cast<size_t>(one.micro_batch) >= facts_.micro_batches()) {
      harm("there is no such micro-batch");
    }
  }

  static bool is_called(const Value& value, ValueKind kind, int32_t layer, int32_t micro_batch) {
    const bool has_layer = program::info_of(kind).has_layer;
    return value.kind == kind && value.micro_batch == micro_batch &&
           (!has_layer || value.layer == layer);
  }
  // It reads the value, and the value is what it is called.
  const Content& need(const Instruction& one, ValueKind kind, int32_t layer) {
    const ValueId id = find(one.reads, [&](const Value& value) {
      return is_called(value, kind, layer, one.micro_batch);
    });
    if (id < 0) {
      harm("lacks what it needs");
    }
    const Content& found = content(id);
    if (found.kind != kind || found.micro_batch != one.micro_batch || found.replica != replica() ||
        (kind != ValueKind::Targets && found.layer != layer)) {
      harm("takes one thing for another");
    }
    return found;
  }

  void forward(const Instruction& one) {
    check_place(one);
    need(one, ValueKind::Activation, one.layer);
    need_carried(one, one.layer);
    meet_weights(one, one.layer);
    meet_layer_state(one);
    make_token(one, ValueKind::Activation, one.layer + 1);
    for (const int32_t element : facts_.born_at(one.layer)) {
      if (const ValueId id = find_carried(one.makes, ValueKind::Carried, element, one); id >= 0) {
        make(one, id, carried_token(ValueKind::Carried, element, one));
      }
    }
    if (one.keep != program::kKeepNothing) {
      mode_of(one.layer, one.keep);
      make_token(one, ValueKind::Saved, one.layer, one.keep);
    }
  }

  // It sees the state of its layer, and may leave a trace there.
  void meet_layer_state(const Instruction& one) {
    const ValueId state = find(rank_.persistent, [&](const Value& value) {
      return value.kind == ValueKind::LayerState && value.layer == one.layer;
    });
    if (state < 0) {
      return;
    }
    if (has(changes(one), state)) {
      if (change(one, state)) {
        spoil(state);
      }
      for (const size_t half : {0, 1}) {
        content(state).gradient.add(
            0, 0, {static_cast<size_t>(replica()), static_cast<size_t>(one.micro_batch), half});
      }
    } else if (!has(one.reads, state)) {
      harm("does not see the state of its layer");
    }
  }

  void lose(const Instruction& one) {
    check_micro_batch(one);
    const int32_t last = facts_.loss_index();
    need(one, ValueKind::Activation, last);
    need(one, ValueKind::Targets, -1);
    need_carried(one, last);
    add_parts(one, last);
    meet_weights(one, last);
    make_token(one, ValueKind::Gradient, last);
    contribute(one, last, {0, 1});
  }

  void go_backward(const Instruction& one) {
    check_place(one);
    need(one, ValueKind::Activation, one.layer);
    need(one, ValueKind::Gradient, one.layer + 1);
    const int32_t mode = need(one, ValueKind::Saved, one.layer).mode;
    if (mode_of(one.layer, mode).needs_output) {
      need(one, ValueKind::Activation, one.layer + 1);
    }
    const std::vector<ValueId> carried = need_carried(one, one.layer);
    for (const int32_t element : facts_.born_at(one.layer)) {
      if (mode_of(one.layer, mode).needs_output) {
        need_element(one, ValueKind::Carried, element);
      }
      need_all_parts(one, element);
    }
    add_parts(one, one.layer);
    meet_weights(one, one.layer);
    if (one.layer > 0) {
      make_token(one, ValueKind::Gradient, one.layer);
    }
    if (one.op == Op::BackwardInput) {
      make_token(one, ValueKind::WeightWork, one.layer, -1, carried);
      contribute(one, one.layer, {0});
    } else {
      contribute(one, one.layer, {0, 1});
    }
  }

  // Where it says that it adds to a unit's gradient. Where it says nothing, its part is lost.
  void contribute(const Instruction& one, int32_t layer, const std::vector<size_t>& phases) {
    const auto micro_batch = static_cast<size_t>(one.micro_batch);
    for (const size_t phase : phases) {
      done_[static_cast<size_t>(layer)].add(
          0, 0, {static_cast<size_t>(replica()), micro_batch, phase});
    }
    for (const int32_t number : facts_.units_at(layer)) {
      if (unit(number).is_frozen) {
        continue;
      }
      const auto is_target = [&](const Value& value) {
        return value.unit == number &&
               ((value.kind == ValueKind::Share && value.layer == layer) ||
                value.kind == ValueKind::GradientSum ||
                (value.kind == ValueKind::Bucket && value.micro_batch == one.micro_batch));
      };
      const std::vector<ValueId> changed = changes(one);
      const ValueId in_place = find(changed, is_target);
      const ValueId made = find(one.makes, is_target);
      if (std::count_if(
              changed.begin(), changed.end(), [&](ValueId id) { return is_target(value(id)); }) +
              (made >= 0 ? 1 : 0) >
          1) {
        harm("adds its part in two places");
      }
      if (made >= 0 && one.op != Op::BackwardWeight) {
        make(one, made, {.kind = ValueKind::Bucket, .gradient = facts_.empty_gradient(number)});
      }
      if (const ValueId target = made >= 0 ? made : in_place; target >= 0) {
        add_part(one, target, layer, phases);
      }
    }
  }
  void add_part(const Instruction& one,
                ValueId target,
                int32_t layer,
                const std::vector<size_t>& phases) {
    const Value& says = value(target);
    Gradient& gradient = content(target).gradient;
    const bool begins = !has(one.makes, target) && change(one, target);
    const bool begins_all = unit(says.unit).is_shared || says.kind != ValueKind::GradientSum;
    const size_t place = facts_.place_of(says.unit, layer);
    const std::vector<bool> is_there = elements_of(unit(says.unit), says.slices);
    for (size_t element = 0; element < is_there.size(); ++element) {
      if (begins && begins_all) {
        gradient.clear(element);
      } else if (begins) {
        gradient.clear(element, place);
      }
      for (const size_t phase : phases) {
        gradient.add(element,
                     place,
                     {static_cast<size_t>(replica()), static_cast<size_t>(one.micro_batch), phase});
      }
      if (!is_there[element]) {
        gradient.spoil(element);
      }
    }
  }

  void stash(const Instruction& one) {
    const size_t units = facts_.program().units.size();
    Content copy{.kind = ValueKind::Stashed, .seen = std::vector<int32_t>(units, kAbsent)};
    std::vector<int32_t> versions;
    for (const int32_t number : facts_.own_units(number_)) {
      const int32_t version = see_held(one, number);
      copy.seen[static_cast<size_t>(number)] = version;
      if (!unit(number).is_frozen) {  // it is the same in every version
        versions.push_back(version);
      }
    }
    const ValueId made =
        find(one.makes, [](const Value& value) { return value.kind == ValueKind::Stashed; });
    if (made >= 0) {
      require_version(value(made), versions.empty() ? updates_done_ : common(versions));
      make(one, made, std::move(copy));
    }
  }

  int32_t only_unit(const Instruction& one) const {
    if (one.units.size() != 1 || one.units[0] < 0 ||
        static_cast<size_t>(one.units[0]) >= facts_.program().units.size()) {
      harm("is of one unit");
    }
    return one.units[0];
  }

  void add_share(const Instruction& one) {
    const int32_t number = only_unit(one);
    const ValueId share = find(one.reads, [&](const Value& value) {
      return value.kind == ValueKind::Share && value.unit == number && value.layer == one.layer;
    });
    const ValueId sum = find_of_unit(changes(one), ValueKind::GradientSum, number);
    if (share < 0 || sum < 0) {
      harm("lacks what it needs");
    }
    const bool loses_old = change(one, sum);
    const std::vector<bool> is_there = elements_of(unit(number), value(sum).slices);
    const std::vector<bool> is_in_share = elements_of(unit(number), value(share).slices);
    for (size_t element = 0; element < is_there.size(); ++element) {
      if (loses_old || !is_there[element] || !is_in_share[element]) {
        content(sum).gradient.spoil(element);
      }
      content(sum).gradient.add(content(share).gradient, element);
    }
  }

  std::vector<Gradient> done_;  // by layer, then the loss: its work since the last update
  int32_t updates_done_ = 0;

 private:
  // ---- What is carried

  ValueId find_carried(const std::vector<ValueId>& list,
                       ValueKind kind,
                       int32_t element,
                       const Instruction& one) const {
    return find(list, [&](const Value& value) {
      return value.kind == kind && value.element == element && value.micro_batch == one.micro_batch;
    });
  }
  Content carried_token(ValueKind kind, int32_t element, const Instruction& one) const {
    Content made = token(kind, -1, one.micro_batch);
    made.element = element;
    return made;
  }
  ValueId need_element(const Instruction& one, ValueKind kind, int32_t element) {
    const ValueId id = find_carried(one.reads, kind, element, one);
    if (id < 0) {
      harm("lacks what it needs");
    }
    const Content& found = content(id);
    if (found.kind != kind || found.micro_batch != one.micro_batch || found.replica != replica() ||
        found.element != element) {
      harm("takes one thing for another");
    }
    return id;
  }
  std::vector<ValueId> need_carried(const Instruction& one, int32_t layer) {
    std::vector<ValueId> found;
    for (const int32_t element : facts_.read_at(layer)) {
      found.push_back(need_element(one, ValueKind::Carried, element));
    }
    return found;
  }
  // The gradient of what the layer has made: of all who read it, from the last to the first.
  void need_all_parts(const Instruction& one, int32_t element) {
    if (!facts_.element(element).has_gradient) {
      return;
    }
    std::vector<int32_t> wanted = facts_.element(element).readers;
    std::sort(wanted.rbegin(), wanted.rend());
    if (content(need_element(one, ValueKind::CarriedGradient, element)).parts != wanted) {
      harm("takes a gradient that is not all of it, or another sum");
    }
  }
  void add_parts(const Instruction& one, int32_t layer) {
    for (const int32_t element : facts_.read_at(layer)) {
      const ValueKind kind = ValueKind::CarriedGradient;
      if (!facts_.element(element).has_gradient || facts_.is_evaluation()) {
        continue;
      }
      if (const ValueId id = find_carried(one.makes, kind, element, one); id >= 0) {
        Content made = carried_token(kind, element, one);
        made.parts = {layer};
        make(one, id, std::move(made));
      } else if (const ValueId sum = find_carried(changes(one), kind, element, one); sum >= 0) {
        const bool loses_old = change(one, sum);
        std::vector<int32_t>& parts = content(sum).parts;
        if (loses_old) {
          parts.clear();
        }
        parts.push_back(layer);
      } else {
        harm("adds its part of a gradient to nothing");
      }
    }
  }

  void make_token(const Instruction& one,
                  ValueKind kind,
                  int32_t layer,
                  int32_t mode = -1,
                  std::vector<ValueId> lies_in = {}) {
    const ValueId id = find(one.makes, [&](const Value& value) {
      return is_called(value, kind, layer, one.micro_batch);
    });
    if (id >= 0) {
      Content made = token(kind, layer, one.micro_batch);
      made.mode = mode;
      made.lies_in = std::move(lies_in);
      make(one, id, std::move(made));
    }
  }

  const program::SaveMode& mode_of(int32_t layer, int32_t mode) const {
    const auto& modes = facts_.program().layers[static_cast<size_t>(layer)].modes;
    if (mode < 0 || static_cast<size_t>(mode) >= modes.size()) {
      harm("there is no such save mode");
    }
    return modes[static_cast<size_t>(mode)];
  }

  // The updates that the weights of a unit have had, as the layer sees them.
  int32_t see(const Instruction& one, int32_t unit) {
    const auto read = [&](ValueKind kind) { return find_of_unit(one.reads, kind, unit); };
    if (const ValueId gathered = read(ValueKind::Gathered); gathered >= 0) {
      return common(content(gathered).updates);
    }
    const ValueId copy =
        find(one.reads, [](const Value& value) { return value.kind == ValueKind::Stashed; });
    if (copy >= 0) {
      return content(copy).seen[static_cast<size_t>(unit)];
    }
    return see_held(one, unit);
  }
  // What is there from step to step: a copy in another precision, and weights that are whole.
  int32_t see_held(const Instruction& one, int32_t number) {
    std::vector<int32_t> seen;
    for (const ValueKind kind : {ValueKind::Compute, ValueKind::Master}) {
      const ValueId id = facts_.held(number_, kind, number);
      const bool is_seen = id >= 0 && (kind == ValueKind::Compute || value(id).slices.empty());
      if (!is_seen) {
        continue;
      }
      if (!has(one.reads, id)) {
        harm("sees weights that it does not read");
      }
      seen.push_back(common(content(id).updates));
    }
    return common(seen);
  }

  bool needs_weights(const Instruction& one, int32_t number, int32_t layer) const {
    const bool is_backward = one.op == Op::Backward || one.op == Op::BackwardInput;
    return one.op == Op::Forward || one.op == Op::Loss ||
           (is_backward && !has(unit(number).forward_only, layer));
  }

  // All that is done with a micro-batch at a layer is done with the same weights, unless the
  // program says otherwise.
  void meet_weights(const Instruction& one, int32_t layer) {
    for (const int32_t number : facts_.units_at(layer)) {
      if (needs_weights(one, number, layer)) {
        meet_version(one, layer, number, see(one, number));
      }
    }
    if (facts_.units_at(layer).empty()) {
      const ValueId copy =
          find(one.reads, [](const Value& value) { return value.kind == ValueKind::Stashed; });
      meet_version(one, layer, kNoUnit, copy < 0 ? updates_done_ : value(copy).version);
    }
  }
  void meet_version(const Instruction& one, int32_t layer, int32_t number, int32_t version) {
    if (version < 0) {
      harm("sees weights that are not whole, or not of one version");
    }
    const auto first = versions_.try_emplace({layer, one.micro_batch, number}, version).first;
    if (first->second != version && !facts_.program().mixes_weights) {
      harm("mixes versions of the weights");
    }
  }

  static constexpr int32_t kNoUnit = -1;

  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> versions_;  // layer, micro-batch, unit
};

}  // namespace penstock::test
