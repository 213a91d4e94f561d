#include "penstock/plan/lower.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "penstock/base/error.h"
#include "penstock/plan/pipeline.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::ValueId;
using program::ValueKind;

// Builds the lists of all ranks, turn by turn. What a turn reads may be the work of another rank:
// only its size matters here, so ranks are written one after the other.
class Lowering {
 public:
  Lowering(const CostTable& table, const Pipeline& pipeline) : table_(table), pipeline_(pipeline) {
    program_.micro_batches = pipeline.schedule.micro_batches;
    program_.updates = pipeline.schedule.updates;
    for (const LayerCost& layer : table.layers) {
      program::LayerInfo row{layer.name, {}};
      for (const KeepCost& way : layer.ways) {
        row.modes.push_back({way.name, way.needs_output});
      }
      program_.layers.push_back(std::move(row));
    }
    program_.mesh.pipeline = pipeline.schedule.ranks();
    program_.ranks.resize(static_cast<size_t>(pipeline.schedule.ranks()));
  }

  program::Program run() {
    for (rank_ = 0; rank_ < pipeline_.schedule.ranks(); ++rank_) {
      newest_.clear();
      kept_.clear();
      stashed_.clear();
      updates_done_ = 0;
      share_ = parameter_share(table_, pipeline_, rank_);
      give_inputs();
      for (turn_ = 0; turn_ < turns().size(); ++turn_) {
        add_turn(turns()[turn_]);
      }
      const std::vector<ValueId> last_sent = free_after_last_use();
      if (!last_sent.empty()) {
        emit({.op = Op::Drop, .frees = last_sent});
      }
      if (updates_done_ == 0) {
        add_step();
      }
    }
    program_.mixes_weights = mixes_weights();
    return std::move(program_);
  }

 private:
  program::RankProgram& rank() { return program_.ranks[static_cast<size_t>(rank_)]; }

  const std::vector<schedule::Turn>& turns() const {
    return pipeline_.schedule.turns[static_cast<size_t>(rank_)];
  }

  int32_t rank_of(int32_t stage) const {
    return pipeline_.schedule.rank_of[static_cast<size_t>(stage)];
  }
  int32_t first_layer(int32_t stage) const { return pipeline_.cuts[static_cast<size_t>(stage)]; }
  int32_t last_stage() const { return pipeline_.schedule.stages() - 1; }

  void give_inputs() {
    for (micro_batch_ = 0; micro_batch_ < program_.micro_batches; ++micro_batch_) {
      if (rank_of(0) == rank_) {
        rank().given.push_back(make(ValueKind::Activation, 0, table_.input_bytes()));
      }
      if (rank_of(last_stage()) == rank_) {
        rank().given.push_back(
            make(ValueKind::Targets, program_.loss_index(), table_.target_bytes));
      }
    }
  }

  void add_step() {
    // Clearing the gradients is part of a table's step: the first work at a layer sets them.
    emit({.op = Op::Step,
          .seconds = share_ * (table_.step_s + table_.clear_s),
          .working_bytes = table_.step_extra_bytes});
    ++updates_done_;
  }

  // Weights that later turns want as they are now are copied before they move.
  void add_update() {
    const bool is_wanted =
        std::any_of(turns().begin() + static_cast<int64_t>(turn_),
                    turns().end(),
                    [&](const schedule::Turn& later) { return later.version == updates_done_; });
    if (is_wanted) {
      const int64_t bytes = pipeline_.weight_bytes[static_cast<size_t>(rank_)];
      const auto copy = static_cast<ValueId>(rank().values.size());
      rank().values.push_back(
          {.kind = ValueKind::Stashed, .version = updates_done_, .bytes = bytes});
      stashed_[updates_done_] = copy;
      // Clearing writes as many bytes as copying reads and writes each.
      emit({.op = Op::Stash,
            .makes = {copy},
            .seconds = 2 * share_ * table_.clear_s,
            .working_bytes = bytes});
    }
    add_step();
  }

  // The copy of the weights that the present turn works with, if it is not the weights themselves.
  std::optional<ValueId> old_weights() const {
    const int32_t version = turns()[turn_].version;
    if (version == schedule::kNewest || version == updates_done_) {
      return std::nullopt;
    }
    return stashed_.at(version);
  }

  bool mixes_weights() const {
    for (const std::vector<schedule::Turn>& turns : pipeline_.schedule.turns) {
      for (const schedule::Turn& turn : turns) {
        if (turn.phase == schedule::Phase::Forward && turn.version == schedule::kNewest) {
          return program_.updates > 1;
        }
      }
    }
    return false;
  }

  void add_turn(const schedule::Turn& turn) {
    if (turn.phase == schedule::Phase::Update) {
      return add_update();
    }
    micro_batch_ = turn.micro_batch;
    const StageOperations& operations =
        pipeline_.operations[static_cast<size_t>(turn.stage)][static_cast<size_t>(micro_batch_)];
    const int32_t begin = first_layer(turn.stage);
    const int32_t end = first_layer(turn.stage + 1);
    switch (turn.phase) {
      case schedule::Phase::Forward:
        receive_from(turn.stage - 1, ValueKind::Activation, begin);
        for (const Operation& operation : operations.forward) {
          add(operation, /*without_output=*/false, /*in_halves=*/false);
        }
        send_to(turn.stage + 1, ValueKind::Activation, end);
        return;
      case schedule::Phase::Backward:
      case schedule::Phase::BackwardInput:
        add_backwards(operations.backward,
                      turn,
                      /*in_halves=*/turn.phase == schedule::Phase::BackwardInput);
        send_to(turn.stage - 1, ValueKind::Gradient, begin);
        return;
      case schedule::Phase::BackwardWeight:
        for (int32_t layer = end - 1; layer >= begin; --layer) {
          add_backward_weight(layer);
        }
        return;
      case schedule::Phase::Update:
        break;
    }
  }

  bool is_elsewhere(int32_t stage) const {
    return stage >= 0 && stage <= last_stage() && rank_of(stage) != rank_;
  }

  // Bytes of the activation that enters `layer`, or of its gradient.
  int64_t boundary_bytes(ValueKind kind, int32_t layer) const {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    return kind == ValueKind::Gradient ? cost.input_gradient() : cost.input_bytes;
  }

  void receive_from(int32_t stage, ValueKind kind, int32_t layer) {
    if (is_elsewhere(stage)) {
      const int64_t bytes = boundary_bytes(kind, layer);
      emit({.op = Op::Receive,
            .layer = layer,
            .micro_batch = micro_batch_,
            .makes = {make(kind, layer, bytes)},
            .resource = {program::ResourceKind::Inlet, rank_of(stage)},
            .working_bytes = bytes});
    }
  }

  void send_to(int32_t stage, ValueKind kind, int32_t layer) {
    if (is_elsewhere(stage)) {
      const int64_t bytes = boundary_bytes(kind, layer);
      emit({.op = Op::Send,
            .layer = layer,
            .micro_batch = micro_batch_,
            .reads = {newest(kind, layer)},
            .resource = {program::ResourceKind::Link, rank_of(stage)},
            .seconds = pipeline_.link.seconds(bytes),
            .sent_bytes = bytes});
    }
  }

  // What is computed again before the first backward need not wait for the gradient.
  void add_backwards(const Operations& operations, const schedule::Turn& turn, bool in_halves) {
    bool has_gradient = false;
    for (size_t i = 0; i < operations.size(); ++i) {
      if (!has_gradient && operations[i].kind == OperationKind::Backward) {
        receive_from(turn.stage + 1, ValueKind::Gradient, first_layer(turn.stage + 1));
        has_gradient = true;
      }
      add(operations[i], leaves_output_out(table_, operations, i), in_halves);
    }
  }

  ValueId make(ValueKind kind, int32_t layer, int64_t bytes) {
    const ValueId id = static_cast<ValueId>(rank().values.size());
    rank().values.push_back(program::layer_value(kind, layer, micro_batch_, bytes));
    newest_[{kind, layer, micro_batch_}] = id;
    return id;
  }

  // The value as it was made last: an activation that is recomputed has several lives.
  ValueId newest(ValueKind kind, int32_t layer) const {
    const auto found = newest_.find({kind, layer, micro_batch_});
    PENSTOCK_CHECK(found != newest_.end(), "a schedule uses layer ", layer, " before it is run");
    return found->second;
  }

  void emit(Instruction instruction) { rank().instructions.push_back(std::move(instruction)); }

  // Of an instruction that works with the weights.
  void emit_weighted(Instruction instruction) {
    if (const std::optional<ValueId> old = old_weights()) {
      instruction.reads.push_back(*old);
    }
    emit(std::move(instruction));
  }

  void add(const Operation& operation, bool without_output, bool in_halves) {
    switch (operation.kind) {
      case OperationKind::ForwardAll:
        return add_keeping_forward(operation.layer, operation.way, without_output);
      case OperationKind::ForwardKeepInput:
      case OperationKind::ForwardDrop:
        return add_forward(operation.layer);
      case OperationKind::Loss:
        return add_loss();
      case OperationKind::Backward:
        return add_backward(operation.layer, in_halves);
    }
  }

  void add_forward(int32_t layer) {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const ValueId input = newest(ValueKind::Activation, layer);
    const ValueId output = make(ValueKind::Activation, layer + 1, cost.output_bytes);
    emit_weighted({.op = Op::Forward,
                   .layer = layer,
                   .micro_batch = micro_batch_,
                   .reads = {input},
                   .makes = {output},
                   .seconds = cost.forward_s,
                   .working_bytes = cost.output_bytes + cost.forward_extra_bytes});
  }

  void add_keeping_forward(int32_t layer, int32_t way, bool without_output) {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const KeepCost& keep = cost.ways[static_cast<size_t>(way)];
    const int64_t state_bytes = keep.saved_bytes - cost.output_bytes;
    Instruction forward{.op = Op::Forward,
                        .layer = layer,
                        .micro_batch = micro_batch_,
                        .keep = way,
                        .reads = {newest(ValueKind::Activation, layer)},
                        .seconds = keep.forward_s,
                        .working_bytes = keep.saved_bytes + keep.forward_extra_bytes};
    Kept kept{way, kNoOutput};
    if (without_output) {
      forward.seconds = keep.recompute_s;
      forward.working_bytes = state_bytes + keep.recompute_extra_bytes;
    } else {
      kept.output = make(ValueKind::Activation, layer + 1, cost.output_bytes);
      forward.makes.push_back(kept.output);
    }
    forward.makes.push_back(make(ValueKind::Saved, layer, state_bytes));
    kept_[{layer, micro_batch_}] = kept;
    emit_weighted(std::move(forward));
  }

  void add_loss() {
    const int32_t last = program_.loss_index();
    const int64_t bytes = table_.layers.back().output_gradient();
    const ValueId input = newest(ValueKind::Activation, last);
    const ValueId targets = newest(ValueKind::Targets, last);
    emit_weighted({.op = Op::Loss,
                   .micro_batch = micro_batch_,
                   .reads = {input, targets},
                   .makes = {make(ValueKind::Gradient, last, bytes)},
                   .seconds = table_.loss.seconds,
                   .working_bytes = bytes + table_.loss.extra_bytes});
  }

  void add_backward(int32_t layer, bool in_halves) {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const auto kept = kept_.find({layer, micro_batch_});
    PENSTOCK_CHECK(
        kept != kept_.end(), "a schedule goes back over layer ", layer, " before it was kept");
    const auto [way, output] = kept->second;
    const KeepCost& keep = cost.ways[static_cast<size_t>(way)];
    Instruction backward{.op = Op::Backward,
                         .layer = layer,
                         .micro_batch = micro_batch_,
                         .reads = {newest(ValueKind::Activation, layer),
                                   newest(ValueKind::Saved, layer),
                                   newest(ValueKind::Gradient, layer + 1)},
                         .seconds = keep.backward_s,
                         .working_bytes = cost.input_gradient() + keep.backward_extra_bytes};
    if (keep.needs_output) {
      backward.reads.push_back(output);
    }
    // The model's own input has no gradient that anybody reads.
    if (layer > 0) {
      backward.makes.push_back(make(ValueKind::Gradient, layer, cost.input_gradient()));
    }
    if (in_halves) {
      const int64_t bytes = cost.weight_half_bytes();
      backward.op = Op::BackwardInput;
      backward.makes.push_back(make(ValueKind::WeightWork, layer, bytes));
      backward.seconds = cost.input_half_s(keep);
      backward.working_bytes = cost.input_gradient() + cost.input_half_extra_bytes(keep);
    }
    emit_weighted(std::move(backward));
  }

  void add_backward_weight(int32_t layer) {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const auto [way, output] = kept_.at({layer, micro_batch_});
    emit({.op = Op::BackwardWeight,
          .layer = layer,
          .micro_batch = micro_batch_,
          .reads = {newest(ValueKind::WeightWork, layer)},
          .seconds = cost.weight_half_s(cost.ways[static_cast<size_t>(way)]),
          .working_bytes = cost.weight_extra_bytes});
  }

  // Every value is freed by the instruction that uses it last. What has been sent has to stay until
  // the peer has it, and nobody should stand waiting for that: it goes with the next message of its
  // channel, or when the gradient of what was sent comes back, whichever is first. Returns what is
  // left then: the last gradient of each channel.
  std::vector<ValueId> free_after_last_use() {
    auto& instructions = rank().instructions;
    std::vector<int64_t> last_use(rank().values.size(), -1);
    std::map<program::Channel, ValueId> on_its_way;
    const auto use = [&](ValueId id, size_t at) {
      last_use[static_cast<size_t>(id)] = static_cast<int64_t>(at);
    };
    for (size_t i = 0; i < instructions.size(); ++i) {
      for (const auto* list : {&instructions[i].reads, &instructions[i].makes}) {
        for (const ValueId id : *list) {
          use(id, i);
        }
      }
      if (instructions[i].op == Op::Send) {
        const program::Channel channel = channel_of(rank(), rank_, instructions[i]);
        if (const auto before = on_its_way.find(channel); before != on_its_way.end()) {
          use(before->second, i);
        }
        on_its_way[channel] = instructions[i].reads[0];
      } else if (instructions[i].op == Op::Receive) {
        take_answer(instructions[i], on_its_way, [&](ValueId id) { use(id, i); });
      }
    }
    std::vector<ValueId> left;
    for (const auto& [channel, id] : on_its_way) {
      left.push_back(id);
      last_use[static_cast<size_t>(id)] = -1;
    }
    for (size_t id = 0; id < last_use.size(); ++id) {
      const ValueId value = static_cast<ValueId>(id);
      const bool is_left = std::find(left.begin(), left.end(), value) != left.end();
      PENSTOCK_CHECK(is_left || last_use[id] >= 0, "a schedule leaves an input unused");
      if (!is_left) {
        instructions[static_cast<size_t>(last_use[id])].frees.push_back(value);
      }
    }
    return left;
  }

  // A gradient that comes in says that the peer has long had the activation.
  template <typename Use>
  void take_answer(const Instruction& receive,
                   std::map<program::Channel, ValueId>& on_its_way,
                   const Use& use) {
    const program::Value& value = rank().values[static_cast<size_t>(receive.makes[0])];
    const program::Channel sent{
        rank_, receive.resource.index, ValueKind::Activation, receive.layer};
    const auto waiting = on_its_way.find(sent);
    if (value.kind == ValueKind::Gradient && waiting != on_its_way.end() &&
        rank().values[static_cast<size_t>(waiting->second)].micro_batch == value.micro_batch) {
      use(waiting->second);
      on_its_way.erase(waiting);
    }
  }

  static constexpr ValueId kNoOutput = -1;
  struct Kept {
    int32_t way = 0;
    ValueId output = kNoOutput;  // made by the same forward
  };

  const CostTable& table_;
  const Pipeline& pipeline_;
  program::Program program_;
  int32_t rank_ = 0;
  int32_t micro_batch_ = 0;
  size_t turn_ = 0;                     // of the rank
  int32_t updates_done_ = 0;            // likewise
  double share_ = 1;                    // of the model's parameters, likewise
  std::map<int32_t, ValueId> stashed_;  // by version
  std::map<std::tuple<ValueKind, int32_t, int32_t>, ValueId> newest_;
  std::map<std::pair<int32_t, int32_t>, Kept> kept_;  // by layer and micro-batch
};

}  // namespace

program::Program write_turns(const CostTable& table, const Pipeline& pipeline) {
  PENSTOCK_CHECK(!table.layers.empty(), "a cost table without layers");
  const schedule::Schedule& schedule = pipeline.schedule;
  PENSTOCK_CHECK(pipeline.cuts.size() == schedule.rank_of.size() + 1 &&
                     pipeline.operations.size() == schedule.rank_of.size(),
                 "a pipeline whose parts do not belong together");
  return Lowering(table, pipeline).run();
}

program::Program lower(const CostTable& table,
                       const Operations& operations,
                       int32_t micro_batches,
                       int64_t limit_bytes,
                       const Holdings& holdings,
                       Spent* spent) {
  const auto loss =
      std::find_if(operations.begin(), operations.end(), [](const Operation& operation) {
        return operation.kind == OperationKind::Loss;
      });
  const StageOperations both{{operations.begin(), loss}, {loss, operations.end()}};
  Pipeline pipeline{.schedule = {.micro_batches = micro_batches, .rank_of = {0}, .turns = {{}}},
                    .cuts = {0, static_cast<int32_t>(table.layers.size())},
                    .operations = {{static_cast<size_t>(micro_batches), both}}};
  for (int32_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    pipeline.schedule.turns[0].push_back({schedule::Phase::Forward, 0, micro_batch});
    pipeline.schedule.turns[0].push_back({schedule::Phase::Backward, 0, micro_batch});
  }
  return lower_pipeline(
      table,
      pipeline,
      holdings.ranks.empty() ? Holdings{.ranks = {fixed_holdings(table.held)}} : holdings,
      limit_bytes,
      spent);
}

}  // namespace penstock::plan
