// One rank of a program, by what its values contain: what its instructions need, make and change
// without other ranks. Exchanges between ranks are in content_interpreter.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "penstock/program/program.h"

#include "program/content.h"
#include "program/content_facts.h"

namespace penstock::test {

class RankContents {
 public:
  using Instruction = program::Instruction;
  using Op = program::Op;
  using Value = program::Value;
  using ValueId = program::ValueId;
  using ValueKind = program::ValueKind;

  RankContents(const ContentFacts& facts, int32_t number)
      : facts_(facts),
        rank_(facts.rank(number)),
        number_(number),
        contents_(rank_.values.size()),
        lives_(rank_.values.size(), Life::NotYet),
        done_(static_cast<size_t>(facts.loss_index()) + 1,
              Gradient(1, 1, facts.replicas(), facts.micro_batches())) {
    for (const ValueId id : rank_.persistent) {
      be_born(id);
      contents_[static_cast<size_t>(id)] = left_by_last_step(value(id));
    }
    for (const ValueId id : rank_.given) {
      be_born(id);
      const Value& one = value(id);
      if (one.kind != ValueKind::Targets &&
          !(one.kind == ValueKind::Activation && one.layer == 0)) {
        harm("nobody can give it before the step");
      }
      contents_[static_cast<size_t>(id)] = token(one.kind, one.layer, one.micro_batch);
    }
  }

  const Value& value(ValueId id) const { return rank_.values[static_cast<size_t>(id)]; }
  Content& content(ValueId id) { return contents_[static_cast<size_t>(id)]; }

  // In the order of the list: all that is used is there, all that is made was not.
  void enter(const Instruction& one) {
    for (const auto* list : {&one.reads, &one.makes, &one.sets, &one.updates, &one.frees}) {
      for (const ValueId id : *list) {
        if (id < 0 || static_cast<size_t>(id) >= rank_.values.size()) {
          harm("there is no value ", id);
        }
      }
    }
    for (const auto* list : {&one.reads, &one.sets, &one.updates}) {
      for (const ValueId id : *list) {
        require_live(id);
      }
    }
    std::vector<ValueId> changed = one.sets;
    changed.insert(changed.end(), one.updates.begin(), one.updates.end());
    std::sort(changed.begin(), changed.end());
    if (std::adjacent_find(changed.begin(), changed.end()) != changed.end()) {
      harm("changes one value twice");
    }
    for (const ValueId id : one.makes) {
      be_born(id);
    }
    if (facts_.is_evaluation() && std::any_of(changed.begin(), changed.end(), [&](ValueId id) {
          return has(rank_.persistent, id);
        })) {
      harm("changes what the next step begins with");
    }
    if (!(one.seconds >= 0)) {
      harm("takes less than no time");
    }
    check_resource(one);
  }
  void leave(const Instruction& one) {
    for (const ValueId id : one.frees) {
      require_live(id);
      if (has(rank_.persistent, id)) {
        harm("frees what the next step needs");
      }
      lives_[static_cast<size_t>(id)] = Life::Gone;
    }
  }

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
        check_place(one);
        need(one, ValueKind::WeightWork, one.layer);
        contribute(one, one.layer, {1});
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

  // Around what an instruction does: afterwards all that it says it makes is made, and what it says
  // it changes and does not is anybody's guess.
  void begin_work(const Instruction&) { touched_.clear(); }
  void end_work(const Instruction& one) {
    for (const ValueId id : one.makes) {
      if (!has(touched_, id)) {
        harm("does not make what it says");
      }
    }
    for (const auto* list : {&one.sets, &one.updates}) {
      for (const ValueId id : *list) {
        if (!has(touched_, id)) {
          spoil(id);
        }
      }
    }
  }
  void make(const Instruction& one, ValueId id, Content made) {
    if (!has(one.makes, id) || has(touched_, id)) {
      harm("makes what it does not say, or twice");
    }
    contents_[static_cast<size_t>(id)] = std::move(made);
    touched_.push_back(id);
  }
  // It changes the value, and has said so. Whether what was there is gone.
  bool change(const Instruction& one, ValueId id) {
    touched_.push_back(id);
    return has(one.sets, id);
  }

  // Finds a value by what it says it is.
  template <typename Matches>
  ValueId find(const std::vector<ValueId>& list, const Matches& matches) const {
    const auto found =
        std::find_if(list.begin(), list.end(), [&](ValueId id) { return matches(value(id)); });
    return found == list.end() ? -1 : *found;
  }
  ValueId find_kind(const std::vector<ValueId>& list, ValueKind kind) const {
    return find(list, [&](const Value& one) { return one.kind == kind; });
  }
  ValueId find_of_unit(const std::vector<ValueId>& list, ValueKind kind, int32_t unit) const {
    return find(list, [&](const Value& one) { return one.kind == kind && one.unit == unit; });
  }
  static std::vector<ValueId> changes(const Instruction& one) {
    std::vector<ValueId> both = one.sets;
    both.insert(both.end(), one.updates.begin(), one.updates.end());
    return both;
  }

  // Squares, decisions and copies say which update they are of.
  void require_version(const Value& says, int32_t version) const {
    if (says.version != version) {
      harm("is of update ", version, " and says ", says.version);
    }
  }
  int32_t updates_done() const { return updates_done_; }

  // What the rank's optimizer needs of its replicas' state is there.
  void fill(const Instruction& one) {
    if (facts_.program().shard != program::Shard::Optimizer) {
      harm("fills a state that is whole, or that nobody averages");
    }
    const ValueId made = find_kind(one.makes, ValueKind::Filled);
    if (made < 0) {
      harm("does not say that the state is there");
    }
    for (const int32_t number : facts_.own_units(number_)) {
      if (moves_[number] > updates_done_) {
        harm("fills a state of which some has moved");
      }
      const ValueId state = change_of_unit(one, ValueKind::State, number);
      if (content(state).prepared != Content::Prepared::No) {
        harm("fills a state that has begun to move");
      }
    }
    require_version(value(made), updates_done_);
    make(one, made, {.kind = ValueKind::Filled});
    filled_ = made;
  }

  // `all`: what each replica has prepared.
  void take_average(const Instruction& one, const Content& all) {
    for (const int32_t number : facts_.own_units(number_)) {
      change_averaged(one, all.prepared, number);
      Content& state = content(change_of_unit(one, ValueKind::State, number));
      const bool is_first = state.averaged.empty();
      state.averaged.assign(num_elements(unit(number)), kUnknown);
      for (size_t element = 0; is_first && element < state.averaged.size(); ++element) {
        state.averaged[element] = common_of_replicas(all.squares, number, element);
      }
    }
    change_rank_state(one);
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
  enum class Life : uint8_t { NotYet, Live, Gone };

  int32_t replica() const { return facts_.replica_of(number_); }

  // It changes what it has of a unit, and has said so. What it sets is lost.
  ValueId change_of_unit(const Instruction& one, ValueKind kind, int32_t number) {
    const ValueId id = find_of_unit(changes(one), kind, number);
    if (id < 0) {
      harm("changes what it does not say");
    }
    if (change(one, id)) {
      spoil(id);
    }
    return id;
  }
  void change_averaged(const Instruction& one, Content::Prepared prepared, int32_t number) {
    if (prepared == Content::Prepared::Gradients) {
      change_of_unit(one, ValueKind::GradientSum, number);
    } else if (prepared == Content::Prepared::Weights) {
      change_of_unit(one, ValueKind::Master, number);
    }
  }
  void change_rank_state(const Instruction& one) {
    for (const ValueId id : rank_.persistent) {
      if (value(id).kind == ValueKind::RankState) {
        if (!has(changes(one), id)) {
          harm("changes what it does not say");
        }
        if (change(one, id)) {
          spoil(id);
        }
      }
    }
  }
  // What all replicas say of an element, each of them something.
  int32_t common_of_replicas(const SquaresContent& all, int32_t number, size_t element) const {
    std::vector<int32_t> known;
    for (const std::vector<std::vector<int32_t>>& of_replica : all) {
      const std::vector<int32_t>& part = of_replica[static_cast<size_t>(number)];
      known.push_back(element < part.size() ? part[element] : kUnknown);
    }
    return common(known);
  }
  const program::Unit& unit(int32_t number) const { return facts_.unit(number); }

  void be_born(ValueId id) {
    Life& life = lives_[static_cast<size_t>(id)];
    if (life != Life::NotYet) {
      harm("makes a value twice");
    }
    life = Life::Live;
  }
  void require_live(ValueId id) const {
    const Life life = lives_[static_cast<size_t>(id)];
    if (life != Life::Live) {
      harm(life == Life::Gone ? "uses what is gone" : "uses what is not yet there");
    }
  }

  void check_resource(const Instruction& one) const {
    using program::ResourceKind;
    const auto [kind, index] = one.resource;
    const bool is_link = kind == ResourceKind::Link, is_inlet = kind == ResourceKind::Inlet;
    if (is_link != (one.op == Op::Send) || is_inlet != (one.op == Op::Receive)) {
      harm("is on a link, and nobody is at its other end; or the other way round");
    }
    if ((is_link || is_inlet) && (index < 0 || index >= facts_.num_ranks() || index == number_)) {
      harm("there is no such peer");
    }
    const bool is_exchange = one.op == Op::Gather || one.op == Op::Reduce || one.op == Op::Exchange;
    if (kind == ResourceKind::Line && (!is_exchange || index != one.group)) {
      harm("is on a line of others");
    }
    if ((kind == ResourceKind::Compute || kind == ResourceKind::HostCompute) && index != 0) {
      harm("there is one of it");
    }
    if (index < 0) {
      harm("there is no such engine");
    }
  }

  Content token(ValueKind kind, int32_t layer, int32_t micro_batch) const {
    return {.kind = kind, .layer = layer, .micro_batch = micro_batch, .replica = replica()};
  }

  // Gradients of the last update; weights and state as they are.
  Content left_by_last_step(const Value& one) const {
    Content content{.kind = one.kind};
    switch (one.kind) {
      case ValueKind::GradientSum:
      case ValueKind::Share:
        content.gradient = facts_.empty_gradient(one.unit);
        content.gradient.spoil();
        break;
      case ValueKind::Master:
      case ValueKind::Compute:
      case ValueKind::State: {
        const std::vector<bool> is_there = elements_of(unit(one.unit), one.slices);
        for (const bool is_one : is_there) {
          content.updates.push_back(is_one ? 0 : kUnknown);
        }
        break;
      }
      case ValueKind::RankState:
        content.updates.assign(facts_.program().units.size(), 0);
        break;
      case ValueKind::Fixed:
        break;
      default:
        harm("nobody holds it from step to step");
    }
    return content;
  }

  void spoil(ValueId id) {
    Content& one = content(id);
    one.gradient.spoil();
    std::fill(one.updates.begin(), one.updates.end(), kUnknown);
    std::fill(one.seen.begin(), one.seen.end(), kUnknown);
    for (std::vector<std::vector<int32_t>>& of_replica : one.squares) {
      for (std::vector<int32_t>& part : of_replica) {
        std::fill(part.begin(), part.end(), kUnknown);
      }
    }
    std::fill(one.averaged.begin(), one.averaged.end(), kUnknown);
    one.update = kUnknown;
    one.layer = one.micro_batch = -1;
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
  void make_token(const Instruction& one, ValueKind kind, int32_t layer, int32_t mode = -1) {
    const ValueId id = find(one.makes, [&](const Value& value) {
      return is_called(value, kind, layer, one.micro_batch);
    });
    if (id >= 0) {
      Content made = token(kind, layer, one.micro_batch);
      made.mode = mode;
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

  void forward(const Instruction& one) {
    check_place(one);
    need(one, ValueKind::Activation, one.layer);
    meet_weights(one, one.layer);
    make_token(one, ValueKind::Activation, one.layer + 1);
    if (one.keep != program::kKeepNothing) {
      mode_of(one.layer, one.keep);
      make_token(one, ValueKind::Saved, one.layer, one.keep);
    }
  }

  void lose(const Instruction& one) {
    check_micro_batch(one);
    const int32_t last = facts_.loss_index();
    need(one, ValueKind::Activation, last);
    need(one, ValueKind::Targets, -1);
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
    meet_weights(one, one.layer);
    if (one.layer > 0) {
      make_token(one, ValueKind::Gradient, one.layer);
    }
    if (one.op == Op::BackwardInput) {
      make_token(one, ValueKind::WeightWork, one.layer);
      contribute(one, one.layer, {0});
    } else {
      contribute(one, one.layer, {0, 1});
    }
  }

  // Where it says that it adds to a unit's gradient. Where it says nothing, its part is lost.
  void contribute(const Instruction& one, int32_t layer, const std::vector<size_t>& halves) {
    const auto micro_batch = static_cast<size_t>(one.micro_batch);
    for (const size_t half : halves) {
      done_[static_cast<size_t>(layer)].add(
          0, 0, {static_cast<size_t>(replica()), micro_batch, half});
    }
    for (const int32_t number : facts_.units_at(layer)) {
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
        add_part(one, target, layer, halves);
      }
    }
  }
  void add_part(const Instruction& one,
                ValueId target,
                int32_t layer,
                const std::vector<size_t>& halves) {
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
      for (const size_t half : halves) {
        gradient.add(element,
                     place,
                     {static_cast<size_t>(replica()), static_cast<size_t>(one.micro_batch), half});
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
      versions.push_back(see_held(one, number));
      copy.seen[static_cast<size_t>(number)] = versions.back();
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

  SquaresContent no_squares() const {
    return SquaresContent(facts_.replicas(),
                          std::vector<std::vector<int32_t>>(facts_.program().units.size()));
  }
  std::vector<int32_t>& part_of(Content& content, int32_t number) const {
    return content.squares[static_cast<size_t>(replica())][static_cast<size_t>(number)];
  }
  // Where it is of one update, the value says so.
  void make_sums(const Instruction& one, Content sums, const std::vector<int32_t>& covered) {
    const ValueId made = find_kind(one.makes, sums.kind);
    if (made >= 0) {
      const int32_t update = covered.empty() ? updates_done_ : common(covered);
      if (update != kUnknown) {
        require_version(value(made), update);
      }
      make(one, made, std::move(sums));
    }
  }

  // Gradients that nobody has reduced: the rank's own, all of them.
  void sketch(const Instruction& one) {
    Content sketches{.kind = ValueKind::Sketches, .squares = no_squares()};
    std::vector<int32_t> covered;
    for (const ValueId id : one.reads) {
      if (value(id).kind != ValueKind::GradientSum) {
        continue;
      }
      const std::vector<bool> is_there = elements_of(unit(value(id).unit), value(id).slices);
      std::vector<int32_t>& part = part_of(sketches, value(id).unit);
      for (size_t element = 0; element < is_there.size(); ++element) {
        part.push_back(is_there[element]
                           ? facts_.own_update_of(content(id).gradient, element, number_)
                           : kUnknown);
      }
      covered.insert(covered.end(), part.begin(), part.end());
    }
    make_sums(one, std::move(sketches), covered);
  }

  void square(const Instruction& one) {
    Content squares{.kind = ValueKind::Squares, .squares = no_squares()};
    std::vector<int32_t> covered;
    const auto cover_moved = [&](int32_t number, const auto& known) {
      const std::vector<bool> moved = facts_.moved(number_, number);
      std::vector<int32_t>& part = part_of(squares, number);
      part.assign(moved.size(), kAbsent);
      for (size_t element = 0; element < moved.size(); ++element) {
        if (moved[element]) {
          part[element] = known(element);
          covered.push_back(part[element]);
        }
      }
    };
    const ValueId sketches = find_kind(one.reads, ValueKind::AllSketches);
    if (sketches >= 0) {
      squares.is_estimate = true;
      for (const int32_t number : facts_.own_units(number_)) {
        cover_moved(number, [&](size_t element) {
          return common_of_replicas(content(sketches).squares, number, element);
        });
      }
    }
    for (const ValueId id : one.reads) {
      if (sketches < 0 && value(id).kind == ValueKind::GradientSum) {
        const std::vector<bool> is_there = elements_of(unit(value(id).unit), value(id).slices);
        cover_moved(value(id).unit, [&](size_t element) {
          return is_there[element] ? facts_.update_of(content(id).gradient, element) : kUnknown;
        });
      }
    }
    make_sums(one, std::move(squares), covered);
  }

  // Ranks that update together decide by the gradients of all units; others by their own.
  void decide(const Instruction& one) {
    const program::Program& program = facts_.program();
    const ValueId from = find(one.reads, [](const Value& value) {
      return value.kind == ValueKind::Squares || value.kind == ValueKind::AllSquares;
    });
    const ValueId made =
        find(one.makes, [](const Value& value) { return value.kind == ValueKind::Decision; });
    if (from < 0 || made < 0) {
      harm("lacks what it needs");
    }
    std::vector<int32_t> covered;
    for (size_t number = 0; number < program.units.size(); ++number) {
      if (program.updates == 1 || has(facts_.own_units(number_), static_cast<int32_t>(number))) {
        cover(content(from).squares, number, covered);
      }
    }
    const int32_t update = covered.empty() ? value(from).version : common(covered);
    if (update != kUnknown) {
      require_version(value(from), update);
      require_version(value(made), update);
    }
    make(one,
         made,
         {.kind = ValueKind::Decision, .update = update, .is_estimate = content(from).is_estimate});
  }
  // What is known of each element of a unit. Where replicas divide it, one of them squares it and
  // the others do not; else any of them will do.
  void cover(const SquaresContent& squares, size_t number, std::vector<int32_t>& covered) const {
    const program::Program& program = facts_.program();
    for (size_t element = 0; element < num_elements(program.units[number]); ++element) {
      std::vector<int32_t> known;
      for (const std::vector<std::vector<int32_t>>& of_replica : squares) {
        const std::vector<int32_t>& part = of_replica[number];
        if (element < part.size() && part[element] != kAbsent) {
          known.push_back(part[element]);
        }
      }
      const bool is_once = program.shard == program::Shard::None || known.size() == 1;
      covered.push_back(is_once ? common(known) : kUnknown);
    }
  }

  // What the optimizer does before an exchange. Gradients that replicas average are their own, and
  // the decision is by their sketches; what is measured is slices, each element by one replica.
  void prepare(const Instruction& one) {
    const ValueId decision = find_kind(one.reads, ValueKind::Decision);
    const bool gives = find_kind(one.makes, ValueKind::Prepared) >= 0;
    const bool measures = find_kind(one.makes, ValueKind::Lengths) >= 0;
    if (decision < 0 || (!gives && !measures)) {
      harm("decides nothing, or prepares nothing");
    }
    if (filled_ >= 0 && !has(one.reads, filled_)) {
      harm("does not wait for the state");
    }
    const Content& decided = content(decision);
    const int32_t update = decided.is_estimate == gives ? decided.update : kUnknown;
    Content ready{.kind = ValueKind::Prepared,
                  .squares = no_squares(),
                  .prepared = gives ? averaged_of(one) : Content::Prepared::Lengths};
    Content lengths{.kind = ValueKind::Lengths, .squares = no_squares()};
    for (const int32_t number : facts_.own_units(number_)) {
      prepare_unit(one, number, update, ready, lengths);
    }
    if (gives) {
      change_rank_state(one);
      make_sums(one, std::move(ready), {decided.update});
    }
    if (measures) {
      measures_ = true;
      make_sums(one, std::move(lengths), {decided.update});
    }
  }
  Content::Prepared averaged_of(const Instruction& one) const {
    const std::vector<ValueId> changed = changes(one);
    const bool gradients = find_kind(changed, ValueKind::GradientSum) >= 0;
    const bool weights = find_kind(changed, ValueKind::Master) >= 0;
    if ((gradients && weights) || (weights && facts_.program().shard != program::Shard::None)) {
      harm("averages two things, or slices of weights");
    }
    return gradients ? Content::Prepared::Gradients
           : weights ? Content::Prepared::Weights
                     : Content::Prepared::Momentum;
  }
  void prepare_unit(
      const Instruction& one, int32_t number, int32_t update, Content& ready, Content& lengths) {
    const ValueId state = change_of_unit(one, ValueKind::State, number);
    change_averaged(one, ready.prepared, number);
    std::vector<ValueId> used = one.reads;
    if (ready.prepared == Content::Prepared::Gradients) {
      used = changes(one);
    }
    const ValueId sum = find_of_unit(used, ValueKind::GradientSum, number);
    if (sum < 0) {
      harm("lacks what it prepares");
    }
    if (content(state).prepared != Content::Prepared::No || moves_[number] > updates_done_) {
      spoil(state);
    }
    content(state).prepared = ready.prepared;
    const bool gives = ready.prepared != Content::Prepared::Lengths;
    const std::vector<bool> moved = facts_.moved(number_, number);
    const std::vector<bool> is_there = elements_of(unit(number), value(sum).slices);
    for (size_t element = 0; element < moved.size(); ++element) {
      const Gradient& gradient = content(sum).gradient;
      const int32_t own = facts_.own_update_of(gradient, element, number_);
      const int32_t found = gives ? own : facts_.update_of(gradient, element);
      const int32_t known = is_there[element] && found == update ? update : kUnknown;
      part_of(ready, number).push_back(known);
      part_of(lengths, number).push_back(moved[element] ? known : kAbsent);
    }
  }

  void step(const Instruction& one) {
    if (facts_.program().units.empty()) {
      if (!one.units.empty()) {
        harm("has no such unit");
      }
      return end_update();  // nobody asks what it moves
    }
    const ValueId decision =
        find(one.reads, [](const Value& value) { return value.kind == ValueKind::Decision; });
    if (decision < 0 || one.units.empty() != facts_.own_units(number_).empty()) {
      harm("decides nothing, or moves nothing");
    }
    for (const int32_t number : one.units) {
      if (!has(facts_.own_units(number_), number)) {
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
            facts_.own_units(number_).begin(), facts_.own_units(number_).end(), has_moved)) {
      end_update();
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
    for (const int32_t number : facts_.own_units(number_)) {
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
      const std::vector<bool> is_there = elements_of(unit(says.unit), says.slices);
      for (size_t element = 0; element < is_there.size(); ++element) {
        if (is_there[element] && !is_right(found.updates[element])) {
          harm("ends with other weights or state than a plain step");
        }
      }
      if (says.kind == ValueKind::Compute && !says.slices.empty()) {
        harm("layers see a part of the weights");
      }
    } else if (says.kind == ValueKind::RankState) {
      const std::vector<int32_t>& own = facts_.own_units(number_);
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

  static constexpr int32_t kNoUnit = -1;

  const ContentFacts& facts_;
  const program::RankProgram& rank_;
  const int32_t number_;
  std::vector<Content> contents_;  // by value
  std::vector<Life> lives_;
  std::vector<ValueId> touched_;  // by the present instruction
  std::vector<Gradient> done_;    // by layer, then the loss: its work since the last update
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> versions_;  // layer, micro-batch, unit
  std::map<int32_t, int32_t> moves_;                                   // by unit
  int32_t updates_done_ = 0;
  ValueId filled_ = -1;    // of the update at hand, what says that the state is there; -1: nothing
  bool measures_ = false;  // likewise: replicas need the sums of each other's slices
};

}  // namespace penstock::test
