#include "penstock/plan/evaluation.h"

#include <map>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/plan/holdings.h"
#include "penstock/plan/shard.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::RankProgram;
using program::ValueId;
using program::ValueKind;

// Of each layer, then of the loss: the stage of ranks that runs it.
std::vector<int32_t> find_stages(const program::Program& step) {
  constexpr int32_t kNone = -1;
  std::vector<int32_t> stages(step.layers.size() + 1, kNone);
  for (int32_t rank = 0; rank < step.mesh.ranks(); ++rank) {
    for (const Instruction& one : step.ranks[static_cast<size_t>(rank)].instructions) {
      if (program::is_at_layer(one.op)) {
        const int32_t layer = one.op == Op::Loss ? step.loss_index() : one.layer;
        stages[static_cast<size_t>(layer)] = step.stage_of(rank);
      }
    }
  }
  for (const int32_t stage : stages) {
    PENSTOCK_CHECK(stage != kNone, "a step that does not run all layers is to be evaluated");
  }
  return stages;
}

// The seconds of the step's send of the activation that enters `layer`; a gradient's are others.
double send_seconds(const program::Program& step, int32_t layer) {
  for (const RankProgram& rank : step.ranks) {
    for (const Instruction& one : rank.instructions) {
      if (one.op == Op::Send && one.layer == layer &&
          rank.value(one.reads[0]).kind == ValueKind::Activation) {
        return one.seconds;
      }
    }
  }
  return 0;
}

// One stage of ranks, before it has weights. Micro-batches go through its layers one after the other,
// in the order of the chain.
class StageEvaluation {
 public:
  StageEvaluation(const program::Program& step,
                  const CostTable& table,
                  const std::vector<int32_t>& stages,
                  int32_t stage)
      : step_(step), table_(table), stages_(stages), stage_(stage) {}

  RankProgram run(int32_t micro_batches) {
    for (micro_batch_ = 0; micro_batch_ < micro_batches; ++micro_batch_) {
      if (is_here(0)) {
        inputs_.push_back(make(ValueKind::Activation, 0, table_.input_bytes()));
        rank_.given.push_back(inputs_.back());
      }
      if (is_here(step_.loss_index())) {
        targets_.push_back(make(ValueKind::Targets, step_.loss_index(), table_.target_bytes));
        rank_.given.push_back(targets_.back());
      }
    }
    for (micro_batch_ = 0; micro_batch_ < micro_batches; ++micro_batch_) {
      for (int32_t layer = 0; layer <= step_.loss_index(); ++layer) {
        if (is_here(layer)) {
          add_work(layer);
        }
      }
    }
    drop_sent();
    return std::move(rank_);
  }

 private:
  bool is_here(int32_t layer) const { return stage_of(layer) == stage_; }
  int32_t stage_of(int32_t layer) const { return stages_[static_cast<size_t>(layer)]; }

  // Of what enters a layer, or the loss.
  int64_t input_bytes(int32_t layer) const {
    return layer < step_.loss_index() ? table_.layers[static_cast<size_t>(layer)].input_bytes
                                      : table_.layers.back().output_bytes;
  }

  ValueId make(ValueKind kind, int32_t layer, int64_t bytes) {
    rank_.values.push_back(program::layer_value(kind, layer, micro_batch_, bytes));
    return static_cast<ValueId>(rank_.values.size() - 1);
  }
  void emit(Instruction instruction) { rank_.instructions.push_back(std::move(instruction)); }

  void add_work(int32_t layer) {
    if (layer == 0) {
      activation_ = inputs_[static_cast<size_t>(micro_batch_)];
    } else if (!is_here(layer - 1)) {
      receive(layer);
    }
    if (layer == step_.loss_index()) {
      return add_loss();
    }
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const ValueId input =
        std::exchange(activation_, make(ValueKind::Activation, layer + 1, cost.output_bytes));
    emit({.op = Op::Forward,
          .layer = layer,
          .micro_batch = micro_batch_,
          .reads = {input},
          .makes = {activation_},
          .frees = {input},
          .seconds = cost.forward_s,
          .working_bytes = cost.output_bytes + cost.forward_extra_bytes});
    if (!is_here(layer + 1)) {
      send(layer + 1);
    }
  }

  // One with a gradient works with no less.
  void add_loss() {
    const ValueId targets = targets_[static_cast<size_t>(micro_batch_)];
    emit({.op = Op::Loss,
          .micro_batch = micro_batch_,
          .reads = {activation_, targets},
          .frees = {activation_, targets},
          .seconds = table_.loss.seconds,
          .working_bytes = table_.layers.back().output_gradient() + table_.loss.extra_bytes});
  }

  void receive(int32_t layer) {
    const int64_t bytes = input_bytes(layer);
    activation_ = make(ValueKind::Activation, layer, bytes);
    emit({.op = Op::Receive,
          .layer = layer,
          .micro_batch = micro_batch_,
          .makes = {activation_},
          .resource = {program::ResourceKind::Inlet, stage_of(layer - 1)},
          .working_bytes = bytes});
  }

  // What was sent goes with the next message of its channel, when the peer has long had it.
  void send(int32_t layer) {
    Instruction one{.op = Op::Send,
                    .layer = layer,
                    .micro_batch = micro_batch_,
                    .reads = {activation_},
                    .resource = {program::ResourceKind::Link, stage_of(layer)},
                    .seconds = send_seconds(step_, layer),
                    .sent_bytes = input_bytes(layer)};
    if (const auto before = sent_.find(layer); before != sent_.end()) {
      one.frees = {before->second};
    }
    sent_[layer] = activation_;
    emit(std::move(one));
  }

  void drop_sent() {
    Instruction drop{.op = Op::Drop};
    for (const auto& [layer, id] : sent_) {
      drop.frees.push_back(id);
    }
    if (!drop.frees.empty()) {
      emit(std::move(drop));
    }
  }

  const program::Program& step_;
  const CostTable& table_;
  const std::vector<int32_t>& stages_;
  const int32_t stage_;
  RankProgram rank_;
  int32_t micro_batch_ = 0;
  ValueId activation_ = -1;                // that enters the next layer
  std::vector<ValueId> inputs_, targets_;  // by micro-batch
  std::map<int32_t, ValueId> sent_;        // the last of each layer
};

// Of the step's gathers of whole weights: what one takes, and what each replica sends.
Sharding find_sharding(const program::Program& step) {
  Sharding sharding{.replicas = step.replicas(), .shard = step.shard};
  for (const program::Unit& unit : step.units) {
    sharding.units.push_back(
        {.unit = unit,
         .gather_sent = std::vector<int64_t>(static_cast<size_t>(step.replicas()), 0)});
  }
  for (int32_t number = 0; number < step.mesh.ranks(); ++number) {
    const RankProgram& rank = step.ranks[static_cast<size_t>(number)];
    for (const Instruction& one : rank.instructions) {
      if (one.op == Op::Gather && !one.units.empty() && !one.makes.empty()) {
        UnitCost& cost = sharding.units[static_cast<size_t>(one.units[0])];
        cost.gathered_bytes = rank.value(one.makes[0]).bytes;
        cost.gather_s = one.seconds;
        cost.gather_sent[static_cast<size_t>(step.replica_of(number))] = one.sent_bytes;
      }
    }
  }
  return sharding;
}

Holdings find_holdings(const program::Program& step) {
  Holdings holdings{.units = step.units};
  for (const RankProgram& rank : step.ranks) {
    RankHoldings& held = holdings.ranks.emplace_back();
    for (const ValueId id : rank.persistent) {
      HeldValue& one = held.values.emplace_back();
      one.value = rank.value(id);
      if (program::info_of(one.value.kind).has_label) {
        one.label = rank.labels[static_cast<size_t>(one.value.label)];
      }
    }
  }
  return holdings;
}

}  // namespace

program::Program write_evaluation(const program::Program& step,
                                  const CostTable& table,
                                  int32_t micro_batches) {
  PENSTOCK_CHECK(table.layers.size() == step.layers.size() && !table.layers.empty(),
                 "costs of ",
                 table.layers.size(),
                 " layers for a step of ",
                 step.layers.size());
  const std::vector<int32_t> stages = find_stages(step);
  program::Program pipeline{.layers = step.layers,
                            .micro_batches = micro_batches,
                            .updates = 0,
                            .mesh = {.pipeline = step.mesh.pipeline}};
  for (int32_t stage = 0; stage < step.mesh.pipeline; ++stage) {
    pipeline.ranks.push_back(StageEvaluation(step, table, stages, stage).run(micro_batches));
  }
  program::Program evaluation = hold(shard(pipeline, find_sharding(step)), find_holdings(step));
  for (size_t i = 0; i < evaluation.ranks.size(); ++i) {
    RankProgram& rank = evaluation.ranks[i];
    program::renumber_values(rank);
    rank.limit_bytes = step.ranks[i].limit_bytes;
    rank.host_limit_bytes = step.ranks[i].host_limit_bytes;
    rank.disk_limit_bytes = step.ranks[i].disk_limit_bytes;
  }
  return evaluation;
}

}  // namespace penstock::plan
