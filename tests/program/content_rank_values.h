// The values of one rank: which are there, what they contain, and how an instruction finds, makes
// and changes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "penstock/program/program.h"

#include "program/content.h"
#include "program/content_facts.h"

namespace penstock::test {

class RankValues {
 public:
  using Instruction = program::Instruction;
  using Op = program::Op;
  using Value = program::Value;
  using ValueId = program::ValueId;
  using ValueKind = program::ValueKind;

  RankValues(const ContentFacts& facts, int32_t number)
      : facts_(facts),
        rank_(facts.rank(number)),
        number_(number),
        contents_(rank_.values.size()),
        lives_(rank_.values.size(), Life::NotYet) {
    for (const ValueId id : rank_.persistent) {
      be_born(id);
      contents_[static_cast<size_t>(id)] = left_by_last_step(value(id));
    }
    for (const ValueId id : rank_.given) {
      be_born(id);
      const Value& one = value(id);
      if (one.kind != ValueKind::Targets &&
          !(one.kind == ValueKind::Activation && one.layer == 0) &&
          !(one.kind == ValueKind::Carried && facts.element(one.element).born < 0)) {
        harm("nobody can give it before the step");
      }
      contents_[static_cast<size_t>(id)] = token(one.kind, one.layer, one.micro_batch);
      contents_[static_cast<size_t>(id)].element = one.element;
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

 protected:
  enum class Life : uint8_t { NotYet, Live, Gone };

  int32_t replica() const { return facts_.replica_of(number_); }

  const program::Unit& unit(int32_t number) const { return facts_.unit(number); }

  Content token(ValueKind kind, int32_t layer, int32_t micro_batch) const {
    return {.kind = kind, .layer = layer, .micro_batch = micro_batch, .replica = replica()};
  }

  void spoil(ValueId id) {
    Content& one = content(id);
    one.gradient.spoil();
    one.committed.spoil();
    std::fill(one.updates.begin(), one.updates.end(), kUnknown);
    std::fill(one.seen.begin(), one.seen.end(), kUnknown);
    for (std::vector<std::vector<int32_t>>& of_replica : one.squares) {
      for (std::vector<int32_t>& part : of_replica) {
        std::fill(part.begin(), part.end(), kUnknown);
      }
    }
    std::fill(one.averaged.begin(), one.averaged.end(), kUnknown);
    one.update = kUnknown;
    one.layer = one.micro_batch = one.element = -1;
  }

  const ContentFacts& facts_;
  const program::RankProgram& rank_;
  const int32_t number_;
  std::vector<Content> contents_;  // by value
  std::vector<Life> lives_;

 private:
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
    const bool is_exchange = one.op == Op::Gather || one.op == Op::Reduce ||
                             one.op == Op::Exchange || one.op == Op::Merge;
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
      case ValueKind::LayerState:
        content.gradient = content.committed =
            Gradient(1, 1, facts_.replicas(), facts_.micro_batches());
        break;
      case ValueKind::Fixed:
        break;
      default:
        harm("nobody holds it from step to step");
    }
    return content;
  }

  std::vector<ValueId> touched_;  // by the present instruction
};

}  // namespace penstock::test
