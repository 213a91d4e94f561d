#include "penstock/plan/lower.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "penstock/base/error.h"
#include "penstock/plan/carried_routes.h"
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
  Lowering(const CostTable& table, const Pipeline& pipeline)
      : table_(table), pipeline_(pipeline), routes_(table, pipeline.schedule, pipeline.cuts) {
    program_.micro_batches = pipeline.schedule.micro_batches;
    program_.updates = pipeline.schedule.updates;
    for (const LayerCost& layer : table.layers) {
      program::LayerInfo row{layer.name, {}};
      for (const SaveModeCost& mode : layer.modes) {
        row.modes.push_back({mode.name, mode.needs_output});
      }
      program_.layers.push_back(std::move(row));
    }
    program_.carried = table.carried_elements();
    carried_at_ = program::carried_by_layer(program_.carried, program_.loss_index());
    program_.mesh.pipeline = pipeline.schedule.ranks();
    program_.ranks.resize(static_cast<size_t>(pipeline.schedule.ranks()));
  }

  program::Program run() {
    for (rank_ = 0; rank_ < pipeline_.schedule.ranks(); ++rank_) {
      newest_.clear();
      kept_.clear();
      stashed_.clear();
      read_by_input_.clear();
      carried_sends_.clear();
      let_go_.assign(turns().size(), {});
      never_let_go_.clear();
      uses_by_peers_.clear();
      updates_done_ = 0;
      share_ = parameter_share(table_, pipeline_, rank_);
      give_inputs();
      for (turn_ = 0; turn_ < turns().size(); ++turn_) {
        const size_t begin = rank().instructions.size();
        add_turn(turns()[turn_]);
        let_go_after_receives(begin);
      }
      const std::vector<ValueId> last_sent = free_after_last_use();
      cover_made_gradients();
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
  // By channel, and the stage that sends; what has but one: kOneWay.
  static constexpr int32_t kOneWay = -1;
  using OnItsWay = std::map<std::pair<program::Channel, int32_t>, ValueId>;

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
      for (size_t i = 0; i < table_.carried.size(); ++i) {
        const auto element = static_cast<int32_t>(i);
        if (table_.carried[i].element.born < 0 && is_touched_here(element)) {
          rank().given.push_back(make(ValueKind::Carried, element, table_.carried[i].bytes));
        }
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
        receive_carried(routes_.ahead(), turn.stage, ValueKind::Carried);
        for (const Operation& operation : operations.forward) {
          add(operation, /*without_output=*/false, /*is_split=*/false);
        }
        send_to(turn.stage + 1, ValueKind::Activation, end);
        send_carried(routes_.ahead(), turn.stage, ValueKind::Carried);
        return;
      case schedule::Phase::Backward:
      case schedule::Phase::BackwardInput:
        add_backwards(operations.backward,
                      turn,
                      /*is_split=*/turn.phase == schedule::Phase::BackwardInput);
        send_to(turn.stage - 1, ValueKind::Gradient, begin);
        send_carried(routes_.back(), turn.stage, ValueKind::CarriedGradient);
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

  bool is_touched_here(int32_t element) const {
    const std::vector<int32_t>& stages = routes_.stages_of(element);
    return std::any_of(
        stages.begin(), stages.end(), [&](int32_t stage) { return rank_of(stage) == rank_; });
  }

  // Bytes of an element, or of its gradient.
  int64_t carried_bytes(ValueKind kind, int32_t element) const {
    const CarriedCost& cost = table_.carried[static_cast<size_t>(element)];
    return kind == ValueKind::CarriedGradient ? cost.gradient_bytes : cost.bytes;
  }

  void receive_carried(const std::vector<CarriedHop>& hops, int32_t stage, ValueKind kind) {
    for (const CarriedHop& hop : hops) {
      if (hop.to == stage && hop.is_message) {
        const int64_t bytes = carried_bytes(kind, hop.element);
        emit({.op = Op::Receive,
              .element = hop.element,
              .micro_batch = micro_batch_,
              .makes = {make(kind, hop.element, bytes)},
              .resource = {program::ResourceKind::Inlet, rank_of(hop.from)},
              .working_bytes = bytes});
      }
    }
  }

  void send_carried(const std::vector<CarriedHop>& hops, int32_t stage, ValueKind kind) {
    for (const CarriedHop& hop : hops) {
      if (hop.from == stage && hop.is_message) {
        const int64_t bytes = carried_bytes(kind, hop.element);
        const ValueId sent = newest(kind, hop.element);
        carried_sends_[rank().instructions.size()] = hop;
        if (hop.is_far()) {
          const std::optional<size_t> turn = routes_.let_go(hop, micro_batch_);
          (turn ? let_go_[*turn] : never_let_go_).push_back(sent);
        }
        emit({.op = Op::Send,
              .element = hop.element,
              .micro_batch = micro_batch_,
              .reads = {sent},
              .resource = {program::ResourceKind::Link, rank_of(hop.to)},
              .seconds = pipeline_.link.seconds(bytes),
              .sent_bytes = bytes});
      }
    }
  }

  // What was sent far goes with the turn's first work after its receives: then the peer has it.
  void let_go_after_receives(size_t begin) {
    const auto& instructions = rank().instructions;
    size_t at = begin;
    for (size_t i = begin; i < instructions.size(); ++i) {
      at = instructions[i].op == Op::Receive ? i + 1 : at;
    }
    for (const ValueId id : let_go_[turn_]) {
      uses_by_peers_.push_back({id, at});
    }
  }

  // What is recomputed before the first backward need not wait for the gradient.
  void add_backwards(const Operations& operations, const schedule::Turn& turn, bool is_split) {
    bool has_gradient = false;
    for (size_t i = 0; i < operations.size(); ++i) {
      if (!has_gradient && operations[i].kind == OperationKind::Backward) {
        receive_from(turn.stage + 1, ValueKind::Gradient, first_layer(turn.stage + 1));
        receive_carried(routes_.back(), turn.stage, ValueKind::CarriedGradient);
        has_gradient = true;
      }
      add(operations[i], leaves_output_out(table_, operations, i), is_split);
    }
  }

  // `place`: the layer, or the carried element.
  ValueId make(ValueKind kind, int32_t place, int64_t bytes) {
    const ValueId id = static_cast<ValueId>(rank().values.size());
    rank().values.push_back(program::layer_value(kind, place, micro_batch_, bytes));
    newest_[{kind, place, micro_batch_}] = id;
    return id;
  }

  // The value as it was made last: an activation that is recomputed has several lives.
  ValueId newest(ValueKind kind, int32_t place) const {
    const auto found = newest_.find({kind, place, micro_batch_});
    PENSTOCK_CHECK(found != newest_.end(), "a schedule uses layer ", place, " before it is run");
    return found->second;
  }

  const program::CarriedAt& carried_at(int32_t layer) const {
    return carried_at_[static_cast<size_t>(layer)];
  }
  const program::Carried& element(int32_t number) const {
    return program_.carried[static_cast<size_t>(number)];
  }

  // What work at a layer (or the loss) reads of carried elements, in every phase.
  std::vector<ValueId> read_carried(int32_t layer, Instruction& work) const {
    std::vector<ValueId> read;
    for (const int32_t number : carried_at(layer).reads) {
      read.push_back(newest(ValueKind::Carried, number));
    }
    work.reads.insert(work.reads.end(), read.begin(), read.end());
    return read;
  }

  void make_carried(int32_t layer, Instruction& forward) {
    for (const int32_t number : carried_at(layer).makes) {
      const int64_t bytes = carried_bytes(ValueKind::Carried, number);
      forward.makes.push_back(make(ValueKind::Carried, number, bytes));
      forward.working_bytes += bytes;
    }
  }

  // The last reader makes the gradient of an element, the others add to it.
  void add_to_carried_gradients(int32_t layer, Instruction& work) {
    for (const int32_t number : carried_at(layer).reads) {
      if (!element(number).has_gradient) {
        continue;
      }
      if (layer == element(number).readers.back()) {
        const int64_t bytes = carried_bytes(ValueKind::CarriedGradient, number);
        work.makes.push_back(make(ValueKind::CarriedGradient, number, bytes));
      } else {
        work.updates.push_back(newest(ValueKind::CarriedGradient, number));
      }
    }
  }

  void emit(Instruction instruction) { rank().instructions.push_back(std::move(instruction)); }

  // Of an instruction that works with the weights.
  void emit_weighted(Instruction instruction) {
    if (const std::optional<ValueId> old = old_weights()) {
      instruction.reads.push_back(*old);
    }
    emit(std::move(instruction));
  }

  void add(const Operation& operation, bool without_output, bool is_split) {
    switch (operation.kind) {
      case OperationKind::ForwardAll:
        return add_keeping_forward(operation.layer, operation.mode, without_output);
      case OperationKind::ForwardKeepInput:
      case OperationKind::ForwardDrop:
        return add_forward(operation.layer);
      case OperationKind::Loss:
        return add_loss();
      case OperationKind::Backward:
        return add_backward(operation.layer, is_split);
    }
  }

  void add_forward(int32_t layer) {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const ValueId input = newest(ValueKind::Activation, layer);
    const ValueId output = make(ValueKind::Activation, layer + 1, cost.output_bytes);
    Instruction forward{.op = Op::Forward,
                        .layer = layer,
                        .micro_batch = micro_batch_,
                        .reads = {input},
                        .makes = {output},
                        .seconds = cost.forward_s,
                        .working_bytes = cost.output_bytes + cost.forward_extra_bytes};
    read_carried(layer, forward);
    make_carried(layer, forward);
    emit_weighted(std::move(forward));
  }

  void add_keeping_forward(int32_t layer, int32_t mode, bool without_output) {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const SaveModeCost& keep = cost.modes[static_cast<size_t>(mode)];
    const int64_t state_bytes = keep.saved_bytes - cost.output_bytes;
    Instruction forward{.op = Op::Forward,
                        .layer = layer,
                        .micro_batch = micro_batch_,
                        .keep = mode,
                        .reads = {newest(ValueKind::Activation, layer)},
                        .seconds = keep.forward_s,
                        .working_bytes = keep.saved_bytes + keep.forward_extra_bytes};
    Kept kept{.mode = mode};
    read_carried(layer, forward);
    if (without_output) {
      forward.seconds = keep.recompute_s;
      forward.working_bytes = state_bytes + keep.recompute_extra_bytes;
    } else {
      kept.output = make(ValueKind::Activation, layer + 1, cost.output_bytes);
      forward.makes.push_back(kept.output);
    }
    forward.makes.push_back(make(ValueKind::Saved, layer, state_bytes));
    if (!without_output) {
      make_carried(layer, forward);
    }
    kept_[{layer, micro_batch_}] = kept;
    emit_weighted(std::move(forward));
  }

  void add_loss() {
    const int32_t last = program_.loss_index();
    const int64_t bytes = table_.layers.back().output_gradient();
    const ValueId input = newest(ValueKind::Activation, last);
    const ValueId targets = newest(ValueKind::Targets, last);
    Instruction loss{.op = Op::Loss,
                     .micro_batch = micro_batch_,
                     .reads = {input, targets},
                     .makes = {make(ValueKind::Gradient, last, bytes)},
                     .seconds = table_.loss.seconds,
                     .working_bytes = bytes + table_.loss.extra_bytes};
    read_carried(last, loss);
    add_to_carried_gradients(last, loss);
    emit_weighted(std::move(loss));
  }

  void add_backward(int32_t layer, bool is_split) {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const auto kept = kept_.find({layer, micro_batch_});
    PENSTOCK_CHECK(
        kept != kept_.end(), "a schedule goes back over layer ", layer, " before it was kept");
    const SaveModeCost& keep = cost.modes[static_cast<size_t>(kept->second.mode)];
    Instruction backward{.op = Op::Backward,
                         .layer = layer,
                         .micro_batch = micro_batch_,
                         .reads = {newest(ValueKind::Activation, layer),
                                   newest(ValueKind::Saved, layer),
                                   newest(ValueKind::Gradient, layer + 1)},
                         .seconds = keep.backward_s,
                         .working_bytes = cost.input_gradient() + keep.backward_extra_bytes};
    if (keep.needs_output) {
      backward.reads.push_back(kept->second.output);
    }
    const std::vector<ValueId> carried = read_carried(layer, backward);
    for (const int32_t number : carried_at(layer).makes) {
      // Nothing below this layer has been recomputed since: the newest is of the same forward.
      if (keep.needs_output) {
        backward.reads.push_back(newest(ValueKind::Carried, number));
      }
      if (element(number).has_gradient) {
        backward.reads.push_back(newest(ValueKind::CarriedGradient, number));
      }
    }
    // The model's own input has no gradient that anybody reads.
    if (layer > 0) {
      backward.makes.push_back(make(ValueKind::Gradient, layer, cost.input_gradient()));
    }
    if (is_split) {
      const int64_t bytes = cost.weight_work_bytes();
      backward.op = Op::BackwardInput;
      backward.makes.push_back(make(ValueKind::WeightWork, layer, bytes));
      backward.seconds = cost.input_gradient_s(keep);
      backward.working_bytes = cost.input_gradient() + cost.input_gradient_extra_bytes(keep);
      read_by_input_[{layer, micro_batch_}] = carried;
    }
    add_to_carried_gradients(layer, backward);
    emit_weighted(std::move(backward));
  }

  void add_backward_weight(int32_t layer) {
    const LayerCost& cost = table_.layers[static_cast<size_t>(layer)];
    const int32_t mode = kept_.at({layer, micro_batch_}).mode;
    Instruction backward{.op = Op::BackwardWeight,
                         .layer = layer,
                         .micro_batch = micro_batch_,
                         .reads = {newest(ValueKind::WeightWork, layer)},
                         .seconds = cost.weight_gradient_s(cost.modes[static_cast<size_t>(mode)]),
                         .working_bytes = cost.weight_extra_bytes};
    // What is left for it may lie in what the input gradient has read, even where forwards have
    // been recomputed since.
    const std::vector<ValueId>& carried = read_by_input_.at({layer, micro_batch_});
    backward.reads.insert(backward.reads.end(), carried.begin(), carried.end());
    emit(std::move(backward));
  }

  // Every value is freed by the instruction that uses it last. What has been sent has to stay until
  // the peer has it, and nobody should stand waiting for that: it goes with the next message of its
  // channel, or when the gradient of what was sent comes back, whichever is first. Gradients of one
  // element may share a channel between several pairs of stages: each pair counts by itself. Far
  // messages are let go by turns of their own. Returns what is left then: the last gradient of each
  // channel.
  std::vector<ValueId> free_after_last_use() {
    auto& instructions = rank().instructions;
    std::vector<int64_t> last_use(rank().values.size(), -1);
    OnItsWay on_its_way;
    const auto use = [&](ValueId id, size_t at) {
      int64_t& last = last_use[static_cast<size_t>(id)];
      last = std::max(last, static_cast<int64_t>(at));
    };
    for (const auto& [id, at] : uses_by_peers_) {
      use(id, at);
    }
    for (size_t i = 0; i < instructions.size(); ++i) {
      for (const auto* list :
           {&instructions[i].reads, &instructions[i].makes, &instructions[i].updates}) {
        for (const ValueId id : *list) {
          use(id, i);
        }
      }
      if (instructions[i].op == Op::Send) {
        const auto hop = carried_sends_.find(i);
        if (hop != carried_sends_.end() && hop->second.is_far()) {
          continue;
        }
        const std::pair channel{channel_of(rank(), rank_, instructions[i]),
                                hop == carried_sends_.end() ? kOneWay : hop->second.from};
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
    }
    for (const ValueId id : never_let_go_) {
      left.push_back(id);
    }
    // An element may be on its way to two peers.
    std::vector<ValueId> once;
    for (const ValueId id : left) {
      if (last_use[static_cast<size_t>(id)] >= 0) {
        once.push_back(id);
        last_use[static_cast<size_t>(id)] = -1;
      }
    }
    left = std::move(once);
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

  // A layer's backward makes gradients of what it reads: room for them is part of its work, also
  // where the table does not say so.
  void cover_made_gradients() {
    for (Instruction& one : rank().instructions) {
      const bool makes_one = std::any_of(one.makes.begin(), one.makes.end(), [&](ValueId id) {
        return rank().value(id).kind == ValueKind::CarriedGradient;
      });
      if (makes_one) {
        one.working_bytes =
            std::max(one.working_bytes, rank().bytes_of(one.makes) - rank().bytes_of(one.frees));
      }
    }
  }

  // A gradient that comes in says that the peer has long had what it is the gradient of.
  template <typename Use>
  void take_answer(const Instruction& receive, OnItsWay& on_its_way, const Use& use) {
    const program::Value& value = rank().values[static_cast<size_t>(receive.makes[0])];
    const bool is_answer =
        value.kind == ValueKind::Gradient || value.kind == ValueKind::CarriedGradient;
    const program::Channel sent{
        rank_,
        receive.resource.index,
        value.kind == ValueKind::Gradient ? ValueKind::Activation : ValueKind::Carried,
        receive.layer,
        receive.element};
    const auto waiting = on_its_way.lower_bound({sent, kOneWay});
    if (is_answer && waiting != on_its_way.end() && waiting->first.first == sent &&
        rank().values[static_cast<size_t>(waiting->second)].micro_batch == value.micro_batch) {
      use(waiting->second);
      on_its_way.erase(waiting);
    }
  }

  static constexpr ValueId kNoOutput = -1;
  struct Kept {
    int32_t mode = 0;
    ValueId output = kNoOutput;  // made by the same forward
  };

  const CostTable& table_;
  const Pipeline& pipeline_;
  const CarriedRoutes routes_;
  program::Program program_;
  std::vector<program::CarriedAt> carried_at_;  // by layer, then the loss
  int32_t rank_ = 0;
  int32_t micro_batch_ = 0;
  size_t turn_ = 0;                     // of the rank
  int32_t updates_done_ = 0;            // likewise
  double share_ = 1;                    // of the model's parameters, likewise
  std::map<int32_t, ValueId> stashed_;  // by version
  std::map<std::tuple<ValueKind, int32_t, int32_t>, ValueId> newest_;
  std::map<std::pair<int32_t, int32_t>, Kept> kept_;  // by layer and micro-batch
  // Likewise: the carried elements that the input gradient has read.
  std::map<std::pair<int32_t, int32_t>, std::vector<ValueId>> read_by_input_;
  std::map<size_t, CarriedHop> carried_sends_;             // by instruction
  std::vector<std::vector<ValueId>> let_go_;               // far messages, by turn
  std::vector<ValueId> never_let_go_;                      // those that no turn lets go
  std::vector<std::pair<ValueId, size_t>> uses_by_peers_;  // until which instruction
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
