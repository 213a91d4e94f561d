#include "penstock/program/rank_check.h"

#include <algorithm>

#include "penstock/base/error.h"
#include "penstock/program/rank_lives.h"
#include "penstock/program/replica_check.h"

namespace penstock::program {

namespace {

class RankCheck {
 public:
  RankCheck(const Program& program, int32_t number, Backwards& backwards)
      : program_(program),
        lives_(program, number),
        replicas_(lives_),
        versions_(backwards.inputs.size(), kNoVersion),
        backwards_(backwards) {}

  Peak run() {
    lives_.begin();
    const std::vector<Instruction>& instructions = lives_.rank().instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      lives_.enter(static_cast<int32_t>(i));
      check_meaning(instructions[i]);
      lives_.leave();
    }
    lives_.end();
    if (steps_ < program_.updates) {
      lives_.refuse(program_.updates == 1
                        ? "there is no step"
                        : cat("there are ", steps_, " steps for ", program_.updates, " updates"));
    }
    replicas_.check_end();
    return lives_.peak();
  }

 private:
  static constexpr int32_t kNoVersion = -1;

  // What the operation itself demands of its values.
  void check_meaning(const Instruction& instruction) {
    check_resource(instruction);
    replicas_.check_frees(instruction);
    switch (instruction.op) {
      case Op::Clear:
        check_touches_no_values(instruction);
        check_comes_before_last_step();
        if (clears_++ > steps_) {
          lives_.refuse("the gradients are cleared a second time");
        }
        if (contributions_ > 0) {
          lives_.refuse("clears gradients that already hold a part");
        }
        return;
      case Op::Forward:
        check_layer(instruction);
        return check_forward(instruction);
      case Op::Loss:
        check_micro_batch(instruction);
        return check_loss(instruction);
      case Op::Backward:
      case Op::BackwardInput:
        check_layer(instruction);
        return check_backward(instruction);
      case Op::BackwardWeight:
        check_layer(instruction);
        return check_backward_weight(instruction);
      case Op::Send:
      case Op::Receive:
        check_micro_batch(instruction);
        return check_transfer(instruction);
      case Op::Drop:
        if (!instruction.reads.empty() || !instruction.makes.empty() || instruction.frees.empty()) {
          lives_.refuse("a drop frees values and does nothing else");
        }
        return;
      case Op::Step:
        if (program_.replicas == 1) {
          check_touches_no_values(instruction);
        }
        if (steps_ >= program_.updates) {
          lives_.refuse(program_.updates == 1 ? "a second step" : "more steps than updates");
        }
        check_gradients_complete();
        replicas_.check_step(instruction);
        ++steps_;
        contributions_ = 0;
        return;
      case Op::Stash:
        return check_stash(instruction);
      case Op::Gather:
        return replicas_.check_gather(instruction);
      case Op::Reduce:
        return replicas_.check_reduce(instruction);
    }
    lives_.refuse("no such operation");
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
      replicas_.check_peer(peer);
    }
    const bool is_to_replicas = kind == ResourceKind::Replicas;
    if (is_to_replicas != is_collective(instruction.op)) {
      lives_.refuse("only gathers and reduces are on the line to the replicas");
    }
  }

  void check_transfer(const Instruction& instruction) const {
    const bool is_send = instruction.op == Op::Send;
    lives_.check_counts(instruction, is_send ? 1 : 0, is_send ? 0 : 1);
    const Value& moved = lives_.value(is_send ? instruction.reads[0] : instruction.makes[0]);
    if (moved.kind != ValueKind::Activation && moved.kind != ValueKind::Gradient) {
      lives_.refuse("only activations and gradients go between ranks");
    }
    if (moved.layer != instruction.layer || moved.micro_batch != instruction.micro_batch) {
      lives_.refuse("moves ",
                    lives_.name(is_send ? instruction.reads[0] : instruction.makes[0]),
                    ", which is of another layer or micro-batch");
    }
  }

  void check_touches_no_values(const Instruction& instruction) const {
    if (!instruction.reads.empty() || !instruction.makes.empty()) {
      lives_.refuse(
          "reads or makes ",
          lives_.name(instruction.reads.empty() ? instruction.makes[0] : instruction.reads[0]),
          "; it works on parameters alone");
    }
  }

  // A copy is of the weights as they are.
  void check_stash(const Instruction& instruction) const {
    if (program_.replicas > 1) {
      lives_.refuse("replicas keep no copies of their weights");
    }
    lives_.check_counts(instruction, 0, 1);
    check_comes_before_last_step();
    const Value& copy = lives_.value(instruction.makes[0]);
    if (copy.kind != ValueKind::Weights || copy.micro_batch != steps_) {
      lives_.refuse("makes ",
                    lives_.name(instruction.makes[0]),
                    " of weights that have had ",
                    steps_,
                    " updates");
    }
  }

  // The updates that the weights of a forward, loss or backward have had.
  int32_t weights_version(const Instruction& instruction) const {
    int32_t version = kNoVersion;
    for (const ValueId id : instruction.reads) {
      if (lives_.value(id).kind == ValueKind::Weights) {
        if (version != kNoVersion) {
          lives_.refuse("reads two versions of the weights");
        }
        version = lives_.value(id).micro_batch;
      }
    }
    return version == kNoVersion ? steps_ : version;
  }
  size_t weights_read(const Instruction& instruction) const {
    return static_cast<size_t>(
        std::count_if(instruction.reads.begin(), instruction.reads.end(), [&](ValueId id) {
          return lives_.value(id).kind == ValueKind::Weights;
        }));
  }

  // All that is done with a micro-batch at a layer is done with the same weights.
  void check_version(const Instruction& instruction, int32_t layer) {
    const int32_t version = weights_version(instruction);
    int32_t& first = versions_[backwards_.index(layer, instruction.micro_batch)];
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
  void contribute(const Instruction& instruction, int32_t layer) {
    if (const int32_t update = program_.update_of(instruction.micro_batch); update != steps_) {
      lives_.refuse(
          "adds to the gradients of update ", steps_, "; the micro-batch is of update ", update);
    }
    replicas_.contribute(instruction, layer);
    ++contributions_;
  }

  void check_micro_batch(const Instruction& instruction) const {
    if (instruction.micro_batch < 0 || instruction.micro_batch >= program_.micro_batches) {
      lives_.refuse("there is no micro-batch ", instruction.micro_batch);
    }
    check_comes_before_last_step();
  }

  void check_comes_before_last_step() const {
    if (steps_ >= program_.updates) {
      lives_.refuse("comes after the ", program_.updates == 1 ? "" : "last ", "step");
    }
  }

  void check_layer(const Instruction& instruction) const {
    check_micro_batch(instruction);
    if (instruction.layer < 0 || instruction.layer >= program_.loss_index()) {
      lives_.refuse("there is no layer ", instruction.layer);
    }
  }

  const Way& way(const Instruction& instruction) const {
    const auto& ways = program_.layers[static_cast<size_t>(instruction.layer)].ways;
    if (instruction.keep < 0 || static_cast<size_t>(instruction.keep) >= ways.size()) {
      lives_.refuse("the layer has no way of keeping number ", instruction.keep);
    }
    return ways[static_cast<size_t>(instruction.keep)];
  }

  void check_forward(const Instruction& instruction) {
    own(backwards_.rank_of[static_cast<size_t>(instruction.layer)]);
    check_version(instruction, instruction.layer);
    const size_t reads = 1 + weights_read(instruction) +
                         replicas_.check_units_of(instruction, instruction.layer).reads;
    lives_.read_of(instruction, ValueKind::Activation, instruction.layer);
    if (instruction.keep == kKeepNothing) {
      lives_.check_counts(instruction, reads, 1);
      lives_.made_of(instruction, ValueKind::Activation, instruction.layer + 1);
      return;
    }
    lives_.made_of(instruction, ValueKind::Saved, instruction.layer);
    // Run again for its backward alone, it may leave out an output that backward does not need.
    const bool leaves_output_out = instruction.makes.size() == 1 && !way(instruction).needs_output;
    lives_.check_counts(instruction, reads, leaves_output_out ? 1 : 2);
    if (!leaves_output_out) {
      lives_.made_of(instruction, ValueKind::Activation, instruction.layer + 1);
    }
  }

  void check_loss(const Instruction& instruction) {
    const int32_t last = program_.loss_index();
    const auto [reads, makes] = replicas_.check_units_of(instruction, last);
    lives_.check_counts(
        instruction, 2 + weights_read(instruction) + reads, (last > 0 ? 1 : 0) + makes);
    lives_.read_of(instruction, ValueKind::Activation, last);
    lives_.read_of(instruction, ValueKind::Targets, last);
    if (last > 0) {
      lives_.made_of(instruction, ValueKind::Gradient, last);
      check_version(instruction, last - 1);
    }
    contribute(instruction, last);
    if (backwards_.losses[static_cast<size_t>(instruction.micro_batch)]++ > 0) {
      lives_.refuse("a second loss of this micro-batch");
    }
    own(backwards_.loss_rank);
  }

  void check_backward(const Instruction& instruction) {
    const ValueId saved = lives_.read_of(instruction, ValueKind::Saved, instruction.layer);
    const int32_t forward = lives_.maker_index(saved);
    const Way& kept = way(lives_.maker(saved));
    const bool is_half = instruction.op == Op::BackwardInput;
    const auto [reads, makes] = replicas_.check_units_of(instruction, instruction.layer);
    check_version(instruction, instruction.layer);
    lives_.check_counts(
        instruction,
        (kept.needs_output ? 4 : 3) + weights_read(instruction) + reads,
        static_cast<size_t>(instruction.layer > 0) + static_cast<size_t>(is_half) + makes);
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
    if (is_half) {
      lives_.made_of(instruction, ValueKind::WeightWork, instruction.layer);
    } else {
      contribute(instruction, instruction.layer);
      ++backwards_.weights[index];
    }
    if (backwards_.inputs[index]++ > 0) {
      lives_.refuse("a second backward of this layer and micro-batch");
    }
    own(backwards_.rank_of[static_cast<size_t>(instruction.layer)]);
  }

  void check_backward_weight(const Instruction& instruction) {
    lives_.check_counts(
        instruction, 1 + replicas_.check_units_of(instruction, instruction.layer).reads, 0);
    lives_.read_of(instruction, ValueKind::WeightWork, instruction.layer);
    check_version(instruction, instruction.layer);
    contribute(instruction, instruction.layer);
    if (backwards_.weights[backwards_.index(instruction.layer, instruction.micro_batch)]++ > 0) {
      lives_.refuse("a second weight half of this layer and micro-batch");
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
    if (clears_ <= steps_) {
      lives_.refuse("the gradients were never cleared");
    }
    const bool is_alone = program_.ranks.size() == static_cast<size_t>(program_.replicas);
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
      lives_.refuse(backwards_.inputs[index] == 0 ? "the backward of " : "the weight half of ",
                    program_.layers[static_cast<size_t>(layer)].name,
                    ", micro-batch ",
                    micro_batch,
                    ", is missing");
    }
  }

  const Program& program_;
  RankLives lives_;
  ReplicaCheck replicas_;
  std::vector<int32_t> versions_;  // by layer and micro-batch: updates of its weights
  Backwards& backwards_;
  int32_t clears_ = 0, steps_ = 0, contributions_ = 0;
};

}  // namespace

Peak check_rank(const Program& program, int32_t number, Backwards& backwards) {
  return RankCheck(program, number, backwards).run();
}

}  // namespace penstock::program
