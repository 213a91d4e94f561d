#include "penstock/plan/evaluation.h"

#include <algorithm>
#include <map>
#include <set>
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

// The seconds of the step's send of the activation that enters a layer, or of a carried element; a
// gradient's are others.
double send_seconds(const program::Program& step, ValueKind kind, int32_t place) {
  for (const RankProgram& rank : step.ranks) {
    for (const Instruction& one : rank.instructions) {
      if (one.op != Op::Send) {
        continue;
      }
      const program::Value& value = rank.value(one.reads[0]);
      if (value.kind == kind && (value.layer == place || value.element == place)) {
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
      : step_(step),
        table_(table),
        stages_(stages),
        stage_(stage),
        carried_at_(program::carried_by_layer(step.carried, step.loss_index())) {}

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
      for (size_t i = 0; i < step_.carried.size(); ++i) {
        const auto element = static_cast<int32_t>(i);
        const auto& [name, born, readers, has_gradient] = step_.carried[i];
        if (born < 0 && std::any_of(readers.begin(), readers.end(), [&](int32_t reader) {
              return is_here(reader);
            })) {
          rank_.given.push_back(make_carried(element));
        }
      }
    }
    for (micro_batch_ = 0; micro_batch_ < micro_batches; ++micro_batch_) {
      for (int32_t layer = 0; layer <= step_.loss_index(); ++layer) {
        if (is_here(layer)) {
          add_work(layer);
        }
      }
    }
    free_carried();
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
    if (layer == 0 || !is_here(layer - 1)) {
      receive_carried(layer);
    }
    if (layer == step_.loss_index()) {
      return add_loss();
    }
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const ValueId input =
        std::exchange(activation_, make(ValueKind::Activation, layer + 1, cost.output_bytes));
    Instruction forward{.op = Op::Forward,
                        .layer = layer,
                        .micro_batch = micro_batch_,
                        .reads = {input},
                        .makes = {activation_},
                        .frees = {input},
                        .seconds = cost.forward_s,
                        .working_bytes = cost.output_bytes + cost.forward_extra_bytes};
    read_carried(layer, forward);
    for (const int32_t element : carried_at_[static_cast<size_t>(layer)].makes) {
      forward.makes.push_back(make_carried(element));
      forward.working_bytes += carried_bytes(element);
    }
    emit(std::move(forward));
    if (!is_here(layer + 1)) {
      send(layer + 1);
      send_carried(layer);
    }
  }

  // One with a gradient works with no less.
  void add_loss() {
    const ValueId targets = targets_[static_cast<size_t>(micro_batch_)];
    Instruction loss{
        .op = Op::Loss,
        .micro_batch = micro_batch_,
        .reads = {activation_, targets},
        .frees = {activation_, targets},
        .seconds = table_.loss.seconds,
        .working_bytes = table_.layers.back().output_gradient() + table_.loss.extra_bytes};
    read_carried(step_.loss_index(), loss);
    emit(std::move(loss));
  }

  // ---- Carried elements: from the layer that makes one along those that read it, to each stage once.

  int64_t carried_bytes(int32_t element) const {
    return table_.carried[static_cast<size_t>(element)].bytes;
  }
  ValueId make_carried(int32_t element) {
    return carried_[{element, micro_batch_}] =
               make(ValueKind::Carried, element, carried_bytes(element));
  }
  void read_carried(int32_t layer, Instruction& work) const {
    for (const int32_t element : carried_at_[static_cast<size_t>(layer)].reads) {
      work.reads.push_back(carried_.at({element, micro_batch_}));
    }
  }

  // Calls use(element, layer, next) for each two layers that follow one another among those of an
  // element, where the second is of a stage that none before is.
  template <typename Use>
  void for_hops(const Use& use) const {
    for (size_t i = 0; i < step_.carried.size(); ++i) {
      if (step_.carried[i].born < 0) {
        continue;
      }
      int32_t before = step_.carried[i].born;
      std::set<int32_t> have_it{stage_of(before)};
      for (const int32_t reader : step_.carried[i].readers) {
        if (have_it.insert(stage_of(reader)).second) {
          use(static_cast<int32_t>(i), before, reader);
        }
        before = reader;
      }
    }
  }

  // Of the layers from `layer` on that are here.
  void receive_carried(int32_t layer) {
    for_hops([&](int32_t element, int32_t before, int32_t reader) {
      if (reader >= layer && is_here(reader) && is_all_here(layer, reader)) {
        const ValueId made = make_carried(element);
        emit({.op = Op::Receive,
              .element = element,
              .micro_batch = micro_batch_,
              .makes = {made},
              .resource = {program::ResourceKind::Inlet, stage_of(before)},
              .working_bytes = carried_bytes(element)});
      }
    });
  }
  // Of the layers up to `layer` that are here.
  void send_carried(int32_t layer) {
    for_hops([&](int32_t element, int32_t before, int32_t reader) {
      if (before <= layer && is_here(before) && is_all_here(before, layer)) {
        emit({.op = Op::Send,
              .element = element,
              .micro_batch = micro_batch_,
              .reads = {carried_.at({element, micro_batch_})},
              .resource = {program::ResourceKind::Link, stage_of(reader)},
              .seconds = send_seconds(step_, ValueKind::Carried, element),
              .sent_bytes = carried_bytes(element)});
      }
    });
  }
  bool is_all_here(int32_t first, int32_t last) const {
    for (int32_t layer = first; layer <= last; ++layer) {
      if (!is_here(layer)) {
        return false;
      }
    }
    return true;
  }

  // With the last reader; what was sent with the next message of its channel, if that is later.
  void free_carried() {
    std::map<ValueId, size_t> last_use;
    std::map<std::pair<int32_t, int32_t>, ValueId> on_its_way;  // by element and peer
    for (size_t i = 0; i < rank_.instructions.size(); ++i) {
      const Instruction& one = rank_.instructions[i];
      for (const auto* list : {&one.reads, &one.makes}) {
        for (const ValueId id : *list) {
          if (rank_.value(id).kind == ValueKind::Carried) {
            last_use[id] = i;
          }
        }
      }
      if (one.op == Op::Send && one.element >= 0) {
        const auto [before, is_first] =
            on_its_way.try_emplace({one.element, one.resource.index}, one.reads[0]);
        if (!is_first) {
          last_use[std::exchange(before->second, one.reads[0])] = i;
        }
      }
    }
    for (const auto& [channel, id] : on_its_way) {
      if (last_use.erase(id) > 0) {  // it may be on its way to two peers
        last_carried_.push_back(id);
      }
    }
    for (const auto& [id, at] : last_use) {
      rank_.instructions[at].frees.push_back(id);
    }
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
                    .seconds = send_seconds(step_, ValueKind::Activation, layer),
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
    drop.frees.insert(drop.frees.end(), last_carried_.begin(), last_carried_.end());
    if (!drop.frees.empty()) {
      emit(std::move(drop));
    }
  }

  const program::Program& step_;
  const CostTable& table_;
  const std::vector<int32_t>& stages_;
  const int32_t stage_;
  const std::vector<program::CarriedAt> carried_at_;  // by layer, then the loss
  RankProgram rank_;
  int32_t micro_batch_ = 0;
  ValueId activation_ = -1;                                 // that enters the next layer
  std::vector<ValueId> inputs_, targets_;                   // by micro-batch
  std::map<int32_t, ValueId> sent_;                         // the last of each layer
  std::map<std::pair<int32_t, int32_t>, ValueId> carried_;  // by element and micro-batch
  std::vector<ValueId> last_carried_;                       // that were sent
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
  PENSTOCK_CHECK(table.carried_elements() == step.carried,
                 "costs of other carried elements than those of the step");
  program::Program pipeline{.layers = step.layers,
                            .carried = step.carried,
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
