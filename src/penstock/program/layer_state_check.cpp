#include "penstock/program/layer_state_check.h"

#include <algorithm>

namespace penstock::program {

namespace {

bool has(const std::vector<ValueId>& list, ValueId id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

}  // namespace

LayerStateCheck::LayerStateCheck(const RankLives& lives)
    : lives_(lives), program_(lives.program()), states_(program_.layers.size(), kNone) {
  for (const ValueId id : lives.rank().persistent) {
    const bool is_there = id >= 0 && static_cast<size_t>(id) < lives.rank().values.size();
    if (!is_there || lives.value(id).kind != ValueKind::LayerState) {
      continue;  // begin() of the lives refuses what is not there
    }
    const int32_t layer = lives.value(id).layer;
    if (layer < 0 || layer >= program_.loss_index()) {
      lives.refuse("the rank holds the state of layer ", layer, ", which is not there");
    }
    ValueId& state = states_[static_cast<size_t>(layer)];
    if (state != kNone) {
      lives.refuse(lives.name(id), " is held beside ", lives.name(state), "; it is there once");
    }
    state = id;
    held_.push_back(id);
  }
}

void LayerStateCheck::require_update(const Instruction& instruction, ValueId id) const {
  if (!has(instruction.updates, id)) {
    lives_.refuse("does not update ", lives_.name(id));
  }
}

RankLives::Counts LayerStateCheck::check_forward(const Instruction& instruction) {
  layers_.insert(instruction.layer);
  const ValueId state = state_of(instruction.layer);
  if (state == kNone) {
    return {};
  }
  const bool is_first = done_.insert({instruction.layer, instruction.micro_batch}).second;
  if (is_first && !program_.is_evaluation()) {
    if (is_merged_) {
      lives_.refuse("changes ", lives_.name(state), " after replicas have merged it");
    }
    require_update(instruction, state);
    return {.changes = 1};
  }
  if (!has(instruction.reads, state)) {
    lives_.refuse("does not read ", lives_.name(state));
  }
  return {.reads = 1};
}

void LayerStateCheck::check_merge(const Instruction& instruction) {
  if (program_.replicas() == 1) {
    lives_.refuse("there are no replicas");
  }
  if (held_.empty()) {
    lives_.refuse("no layer of the rank has state");
  }
  if (is_merged_) {
    lives_.refuse("merges the state of layers a second time");
  }
  for (const ValueId id : held_) {
    require_update(instruction, id);
  }
  lives_.check_counts(instruction, {.changes = held_.size()});
  is_merged_ = true;
}

RankLives::Counts LayerStateCheck::check_step(const Instruction& instruction) const {
  if (program_.replicas() > 1 && !held_.empty() && !is_merged_) {
    lives_.refuse("replicas have not merged ", lives_.name(held_[0]));
  }
  for (const ValueId id : held_) {
    require_update(instruction, id);
  }
  return {.changes = held_.size()};
}

void LayerStateCheck::check_end() const {
  for (const ValueId id : held_) {
    if (!layers_.contains(lives_.value(id).layer)) {
      lives_.refuse("the rank holds ", lives_.name(id), " and does not run its layer");
    }
  }
}

}  // namespace penstock::program
