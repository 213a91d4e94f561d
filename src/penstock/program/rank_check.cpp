#include "penstock/program/rank_check.h"

#include <algorithm>

#include "penstock/base/error.h"
#include "penstock/program/carried_check.h"
#include "penstock/program/layer_state_check.h"
#include "penstock/program/rank_lives.h"
#include "penstock/program/unit_check.h"

namespace penstock::program {

namespace {

class RankCheck {
 public:
  RankCheck(const Program& program, int32_t number, Backwards& backwards)
      : program_(program),
        lives_(program, number),
        units_(lives_),
        carried_(lives_, backwards.carried),
        layer_state_(lives_),
        versions_(backwards.inputs.size(), kNoVersion),
        backwards_(backwards) {}

  Peak run() {
    lives_.begin();
    const std::vector<Instruction>& instructions = lives_.rank().instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      at_ = static_cast<int32_t>(i);
      lives_.enter(at_);
      check_meaning(instructions[i]);
      lives_.leave();
    }
    lives_.end();
    if (steps_ < program_.updates) {
      lives_.refuse(program_.updates == 1
                        ? "there is no step"
                        : cat("there are ", steps_, " steps for ", program_.updates, " updates"));
    }
    units_.check_end();
    layer_state_.check_end();
    return lives_.peak();
  }

 private:
  static constexpr int32_t kNoVersion = -1;

  using Check = void (RankCheck::*)(const Instruction&);
  void check_meaning(const Instruction& instruction) {
    // What each operation demands of its values, in the order of Op.
    static constexpr OpTable<Check> kChecks = op_table<Check>({
        {Op::Forward, &RankCheck::check_forward},
        {Op::Loss, &RankCheck::check_loss},
        {Op::Backward, &RankCheck::check_backward},
        {Op::BackwardInput, &RankCheck::check_backward},
        {Op::BackwardWeight, &RankCheck::check_backward_weight},
        {Op::Send, &RankCheck::check_transfer},
        {Op::Receive, &RankCheck::check_transfer},
        {Op::Drop, &RankCheck::check_drop},
        {Op::Stash, &RankCheck::check_stash},
        {Op::Gather, &RankCheck::check_gather},
        {Op::Reduce, &RankCheck::check_reduce},
        {Op::Add, &RankCheck::check_add},
        {Op::Sketch, &RankCheck::check_sketch},
        {Op::Squares, &RankCheck::check_squares},
        {Op::Decide, &RankCheck::check_decide},
        {Op::Prepare, &RankCheck::check_prepare},
        {Op::Exchange, &RankCheck::check_exchange},
        {Op::Merge, &RankCheck::check_merge},
        {Op::Step, &RankCheck::check_step},
    });
    if (static_cast<size_t>(instruction.op) >= kNumOps) {
      lives_.refuse("no such operation");
    }
    if (program_.is_evaluation()) {
      check_evaluates(instruction);
    }
    check_resource(instruction);
    check_unused_fields(instruction);
    units_.check_frees(instruction);
    (this->*row_of(kChecks, instruction.op))(instruction);
  }

  // No backward takes what a forward keeps, and nothing that is held changes.
  void check_evaluates(const Instruction& instruction) const {
    const Op op = instruction.op;
    if (op != Op::Forward && op != Op::Loss && op != Op::Drop && op != Op::Gather &&
        !is_transfer(op)) {
      lives_.refuse("an evaluation has no ", op_name(op));
    }
    if (instruction.keep != kKeepNothing) {
      lives_.refuse("an evaluation keeps nothing for a backward");
    }
    if (!instruction.sets.empty() || !instruction.updates.empty()) {
      const ValueId changed =
          instruction.sets.empty() ? instruction.updates[0] : instruction.sets[0];
      lives_.refuse("changes ", lives_.name(changed), "; an evaluation changes nothing");
    }
  }

  // Fields that an operation has no use for are as they are by default.
  void check_unused_fields(const Instruction& instruction) const {
    const Op op = instruction.op;
    const bool is_work = is_at_layer(op);
    const bool has_layer = (is_work && op != Op::Loss) || is_transfer(op) || op == Op::Add;
    const bool is_of_units = op == Op::Gather || op == Op::Reduce;
    const bool has_micro_batch = is_work || is_transfer(op) || is_of_units;
    const bool has_units = is_of_units || op == Op::Add || op == Op::Step;
    if ((!has_layer && instruction.layer != -1) ||
        (!is_transfer(op) && instruction.element != -1) ||
        (!has_micro_batch && instruction.micro_batch != -1) ||
        (op != Op::Forward && instruction.keep != kKeepNothing) ||
        (op == Op::Receive && instruction.seconds != 0)) {
      lives_.refuse(
          "names a layer, a micro-batch, a save mode or seconds, and has no use for them");
    }
    if ((!has_units && !instruction.units.empty()) ||
        (!is_collective(op) && instruction.group != kNoGroup) ||
        (op != Op::Reduce && instruction.scatters) ||
        (op != Op::Send && !is_collective(op) && instruction.sent_bytes != 0)) {
      lives_.refuse("names units, a group or sent bytes, and has no use for them");
    }
  }

  void check_drop(const Instruction& instruction) {
    lives_.check_counts(instruction, {});
    if (instruction.frees.empty()) {
      lives_.refuse("a drop frees values and does nothing else");
    }
  }
  void check_gather(const Instruction& instruction) {
    check_comes_before_end(instruction);
    units_.check_gather(instruction);
  }
  void check_reduce(const Instruction& instruction) {
    check_comes_before_last_step();
    units_.check_reduce(instruction);
  }
  void check_add(const Instruction& instruction) {
    check_comes_before_last_step();
    units_.check_add(instruction);
  }
  void check_sketch(const Instruction& instruction) {
    check_comes_before_last_step();
    check_gradients_complete();
    units_.check_sketch(instruction);
  }
  void check_prepare(const Instruction& instruction) {
    check_comes_before_last_step();
    check_gradients_complete();
    units_.check_prepare(instruction);
  }
  void check_exchange(const Instruction& instruction) {
    check_comes_before_last_step();
    units_.check_exchange(instruction);
  }
  void check_merge(const Instruction& instruction) {
    check_comes_before_last_step();
    units_.require_group(instruction, comm::along(comm::Axis::Data));
    layer_state_.check_merge(instruction);
  }
  void check_squares(const Instruction& instruction) {
    check_comes_before_last_step();
    check_gradients_complete();
    units_.check_squares(instruction);
  }
  void check_decide(const Instruction& instruction) {
    check_comes_before_last_step();
    units_.check_decide(instruction);
  }
  void check_step(const Instruction& instruction) {
    if (steps_ >= program_.updates) {
      lives_.refuse(program_.updates == 1 ? "a second step" : "more steps than updates");
    }
    check_gradients_complete();
    const RankLives::Counts state = layer_state_.check_step(instruction);
    if (program_.units.empty()) {
      const bool has_decision = !instruction.reads.empty();
      lives_.check_counts(instruction,
                          {.reads = has_decision ? size_t{1} : 0, .changes = state.changes});
      if (!instruction.units.empty()) {
        lives_.refuse("there is no unit ", instruction.units[0]);
      }
      if (has_decision && lives_.value(instruction.reads[0]).kind != ValueKind::Decision) {
        lives_.refuse("reads ", lives_.name(instruction.reads[0]), ", which is no decision");
      }
    }
    if (units_.check_step(instruction, state)) {
      ++steps_;
      layer_state_.end_update();
    }
  }

  // What other replicas have moved is gathered after the step; nothing else comes after it.
  void check_comes_before_end(const Instruction& instruction) const {
    const bool gathers_moved = instruction.makes.empty();
    if (!gathers_moved) {
      check_comes_before_last_step();
    }
  }

  void check_resource(const Instruction& instruction) const {
    const ResourceKind kind = instruction.resource.kind;
    const bool is_link = kind == ResourceKind::Link;
    const bool is_inlet = kind == ResourceKind::Inlet;
    if (is_link != (instruction.op == Op::Send) || is_inlet != (instruction.op == Op::Receive)) {
      lives_.refuse("only a send is on a link, only a receive on an inlet");
    }
    const int32_t peer = instruction.resource.index;
    const bool is_rank = peer >= 0 && peer < static_cast<int32_t>(program_.ranks.size());
    if ((is_link || is_inlet) && (!is_rank || peer == lives_.number())) {
      lives_.refuse("there is no other rank ", peer);
    }
    if (is_link || is_inlet) {
      units_.check_peer(peer);
    }
    if (kind == ResourceKind::Line) {
      if (!is_collective(instruction.op) || peer != instruction.group) {
        lives_.refuse("only gathers and reduces of its group are on a line");
      }
    }
    const bool is_one = kind == ResourceKind::Compute || kind == ResourceKind::HostCompute;
    if (peer < 0 || (is_one && peer != 0)) {
      lives_.refuse("there is no resource number ", peer, " of its kind");
    }
  }

  void check_transfer(const Instruction& instruction) {
    check_micro_batch(instruction);
    const bool is_send = instruction.op == Op::Send;
    lives_.check_counts(instruction,
                        {.reads = is_send ? size_t{1} : 0, .makes = is_send ? 0 : size_t{1}});
    const Value& moved = lives_.value(is_send ? instruction.reads[0] : instruction.makes[0]);
    if (moved.kind != ValueKind::Activation && moved.kind != ValueKind::Gradient &&
        moved.kind != ValueKind::Carried && moved.kind != ValueKind::CarriedGradient) {
      lives_.refuse("only activations, carried elements and their gradients go between ranks");
    }
    if (moved.layer != instruction.layer || moved.element != instruction.element ||
        moved.micro_batch != instruction.micro_batch) {
      lives_.refuse("moves ",
                    lives_.name(is_send ? instruction.reads[0] : instruction.makes[0]),
                    ", which is of another layer, element or micro-batch");
    }
    carried_.check_transfer(instruction, at_);
    if (is_send && instruction.sent_bytes != moved.bytes) {
      lives_.refuse("sends ",
                    lives_.name(instruction.reads[0]),
                    " of ",
                    moved.bytes,
                    " bytes and counts ",
                    instruction.sent_bytes);
    }
  }

  // A copy is of the weights as they are.
  void check_stash(const Instruction& instruction) {
    if (program_.replicas() > 1) {
      lives_.refuse("replicas keep no copies of their weights");
    }
    check_comes_before_last_step();
    units_.check_stash(instruction);
    const Value& copy = lives_.value(instruction.makes[0]);
    if (copy.kind != ValueKind::Stashed || copy.version != steps_) {
      lives_.refuse("makes ",
                    lives_.name(instruction.makes[0]),
                    " of weights that have had ",
                    steps_,
                    " updates");
    }
  }

  // The updates that the weights of a forward, loss or backward have had.
  int32_t weights_version(const Instruction& instruction, int32_t layer) const {
    int32_t version = kNoVersion;
    for (const ValueId id : instruction.reads) {
      if (lives_.value(id).kind == ValueKind::Stashed) {
        if (version != kNoVersion) {
          lives_.refuse("reads two versions of the weights");
        }
        version = lives_.value(id).version;
      }
    }
    return version == kNoVersion ? units_.version_of(layer).value_or(steps_) : version;
  }
  size_t weights_read(const Instruction& instruction) const {
    return static_cast<size_t>(
        std::count_if(instruction.reads.begin(), instruction.reads.end(), [&](ValueId id) {
          return lives_.value(id).kind == ValueKind::Stashed;
        }));
  }

  // All that is done with a micro-batch at a layer is done with the same weights; the loss works with
  // those that the last layer had.
  void check_version(const Instruction& instruction, int32_t layer) {
    const int32_t version = weights_version(instruction, layer);
    const int32_t last = program_.loss_index() - 1;
    int32_t& first = versions_[backwards_.index(std::min(layer, last), instruction.micro_batch)];
    if (first == kNoVersion) {
      first = version;
    } else if (first != version && !program_.mixes_weights) {
      lives_.refuse("works with weights after ",
                    version,
                    " updates, and the micro-batch went forward with those after ",
                    first);
    }
  }

  // The gradients that an update takes are those of its micro-batches alone.
  void contribute(const Instruction& instruction) const {
    if (const int32_t update = program_.update_of(instruction.micro_batch); update != steps_) {
      lives_.refuse(
          "adds to the gradients of update ", steps_, "; the micro-batch is of update ", update);
    }
  }

  void check_micro_batch(const Instruction& instruction) const {
    if (instruction.micro_batch < 0 || instruction.micro_batch >= program_.micro_batches) {
      lives_.refuse("there is no micro-batch ", instruction.micro_batch);
    }
    check_comes_before_last_step();
  }

  void check_comes_before_last_step() const {
    if (!program_.is_evaluation() && steps_ >= program_.updates) {
      lives_.refuse("comes after the ", program_.updates == 1 ? "" : "last ", "step");
    }
  }

  void check_layer(const Instruction& instruction) const {
    check_micro_batch(instruction);
    if (instruction.layer < 0 || instruction.layer >= program_.loss_index()) {
      lives_.refuse("there is no layer ", instruction.layer);
    }
  }

  const SaveMode& mode_of(const Instruction& instruction) const {
    const auto& modes = program_.layers[static_cast<size_t>(instruction.layer)].modes;
    if (instruction.keep < 0 || static_cast<size_t>(instruction.keep) >= modes.size()) {
      lives_.refuse("the layer has no save mode number ", instruction.keep);
    }
    return modes[static_cast<size_t>(instruction.keep)];
  }

  // Its own operands, those of carried elements, and those of its units.
  void check_operands(const Instruction& instruction,
                      int32_t layer,
                      const RankLives::Counts& own,
                      const RankLives::Counts& carried) {
    const size_t copies = weights_read(instruction);
    const RankLives::Counts extra = units_.check_work(instruction, layer, copies > 0);
    lives_.check_counts(instruction,
                        {.reads = own.reads + carried.reads + copies + extra.reads,
                         .makes = own.makes + carried.makes + extra.makes,
                         .changes = own.changes + carried.changes + extra.changes});
  }

  void check_forward(const Instruction& instruction) {
    check_layer(instruction);
    own(backwards_.rank_of[static_cast<size_t>(instruction.layer)]);
    check_version(instruction, instruction.layer);
    lives_.read_of(instruction, ValueKind::Activation, instruction.layer);
    const RankLives::Counts state = layer_state_.check_forward(instruction);
    size_t makes = 1;
    bool makes_output = true;
    if (instruction.keep != kKeepNothing) {
      const SaveMode& mode = mode_of(instruction);
      lives_.made_of(instruction, ValueKind::Saved, instruction.layer);
      // Recomputed for its backward alone, it may leave out an output that backward does not need.
      makes_output = instruction.makes.size() != 1 || mode.needs_output;
      makes = makes_output ? 2 : 1;
    }
    check_operands(instruction,
                   instruction.layer,
                   {.reads = 1 + state.reads, .makes = makes, .changes = state.changes},
                   carried_.check_forward(instruction, makes_output));
    if (makes_output) {
      lives_.made_of(instruction, ValueKind::Activation, instruction.layer + 1);
    }
  }

  void check_loss(const Instruction& instruction) {
    check_micro_batch(instruction);
    const int32_t last = program_.loss_index();
    const bool has_gradient = last > 0 && !program_.is_evaluation();
    check_operands(instruction,
                   last,
                   {.reads = 2, .makes = has_gradient ? size_t{1} : 0},
                   carried_.check_loss(instruction));
    lives_.read_of(instruction, ValueKind::Activation, last);
    lives_.read_of(instruction, ValueKind::Targets, last);
    if (has_gradient) {
      lives_.made_of(instruction, ValueKind::Gradient, last);
    }
    if (last > 0) {
      check_version(instruction, last);
    }
    contribute(instruction);
    if (backwards_.losses[static_cast<size_t>(instruction.micro_batch)]++ > 0) {
      lives_.refuse("a second loss of this micro-batch");
    }
    own(backwards_.loss_rank);
  }

  void check_backward(const Instruction& instruction) {
    check_layer(instruction);
    const ValueId saved = lives_.read_of(instruction, ValueKind::Saved, instruction.layer);
    const int32_t forward = lives_.maker_index(saved);
    const SaveMode& kept = mode_of(lives_.maker(saved));
    const bool is_input_gradient = instruction.op == Op::BackwardInput;
    check_version(instruction, instruction.layer);
    check_operands(instruction,
                   instruction.layer,
                   {.reads = kept.needs_output ? size_t{4} : size_t{3},
                    .makes = static_cast<size_t>(instruction.layer > 0) +
                             static_cast<size_t>(is_input_gradient)},
                   carried_.check_backward(instruction, forward, kept.needs_output));
    lives_.read_of(instruction, ValueKind::Activation, instruction.layer);
    lives_.read_of(instruction, ValueKind::Gradient, instruction.layer + 1);
    if (kept.needs_output) {
      const ValueId output =
          lives_.read_of(instruction, ValueKind::Activation, instruction.layer + 1);
      if (lives_.maker_index(output) != forward) {
        lives_.refuse(
            "reads ", lives_.name(saved), " and ", lives_.name(output), ", which were made apart");
      }
    }
    if (instruction.layer > 0) {
      lives_.made_of(instruction, ValueKind::Gradient, instruction.layer);
    }
    const size_t index = backwards_.index(instruction.layer, instruction.micro_batch);
    if (is_input_gradient) {
      lives_.made_of(instruction, ValueKind::WeightWork, instruction.layer);
    } else {
      contribute(instruction);
      ++backwards_.weights[index];
    }
    if (backwards_.inputs[index]++ > 0) {
      lives_.refuse("a second backward of this layer and micro-batch");
    }
    own(backwards_.rank_of[static_cast<size_t>(instruction.layer)]);
  }

  void check_backward_weight(const Instruction& instruction) {
    check_layer(instruction);
    lives_.read_of(instruction, ValueKind::WeightWork, instruction.layer);
    check_version(instruction, instruction.layer);
    check_operands(
        instruction, instruction.layer, {.reads = 1}, carried_.check_backward_weight(instruction));
    contribute(instruction);
    if (backwards_.weights[backwards_.index(instruction.layer, instruction.micro_batch)]++ > 0) {
      lives_.refuse("a second weight gradient of this layer and micro-batch");
    }
  }

  // The parameters of a layer, or of the loss, are with one rank.
  void own(int32_t& owner) const {
    if (owner != Backwards::kNone && owner != lives_.number()) {
      lives_.refuse("rank ", owner, " has this layer's parameters");
    }
    owner = lives_.number();
  }

  void check_gradients_complete() const {
    const bool is_alone = program_.mesh.degree(comm::Axis::Pipeline) == 1;
    const int32_t count = program_.micro_batches / program_.updates;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t micro_batch = steps_ * count + i;
      if ((is_alone || backwards_.loss_rank == lives_.number()) &&
          backwards_.losses[static_cast<size_t>(micro_batch)] == 0) {
        lives_.refuse("the loss of micro-batch ", micro_batch, " is missing");
      }
      for (int32_t layer = 0; layer < program_.loss_index(); ++layer) {
        if (is_alone || backwards_.rank_of[static_cast<size_t>(layer)] == lives_.number()) {
          check_backward_complete(layer, micro_batch);
        }
      }
    }
  }

  void check_backward_complete(int32_t layer, int32_t micro_batch) const {
    const size_t index = backwards_.index(layer, micro_batch);
    if (backwards_.inputs[index] == 0 || backwards_.weights[index] == 0) {
      lives_.refuse(backwards_.inputs[index] == 0 ? "the backward of " : "the weight gradient of ",
                    program_.layers[static_cast<size_t>(layer)].name,
                    ", micro-batch ",
                    micro_batch,
                    ", is missing");
    }
  }

  const Program& program_;
  RankLives lives_;
  UnitCheck units_;
  CarriedCheck carried_;
  LayerStateCheck layer_state_;
  std::vector<int32_t> versions_;  // by layer and micro-batch: updates of its weights
  Backwards& backwards_;
  int32_t steps_ = 0;
  int32_t at_ = 0;  // the instruction
};

}  // namespace

Peak check_rank(const Program& program, int32_t number, Backwards& backwards) {
  return RankCheck(program, number, backwards).run();
}

}  // namespace penstock::program
