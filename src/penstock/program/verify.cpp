#include "penstock/program/verify.h"

#include <algorithm>

#include "penstock/base/error.h"
#include "penstock/base/units.h"
#include "penstock/program/waits.h"

namespace penstock::program {

namespace {

// Thrown inside this file alone; verify() turns it into its answer.
struct Refusal {
  Violation violation;
};

// Who goes backward over a layer for a micro-batch, over all ranks.
struct Backwards {
  explicit Backwards(const Program& program)
      : layers(program.layers.size()),
        rank_of(layers, kNone),
        inputs(layers * static_cast<size_t>(program.micro_batches), 0),
        weights(inputs.size(), 0),
        losses(static_cast<size_t>(program.micro_batches), 0) {}

  size_t index(int32_t layer, int32_t micro_batch) const {
    return static_cast<size_t>(micro_batch) * layers + static_cast<size_t>(layer);
  }

  static constexpr int32_t kNone = -1;
  size_t layers;
  std::vector<int32_t> rank_of;          // of a layer: who runs it
  std::vector<int32_t> inputs, weights;  // by layer and micro-batch: halves, or both at once
  std::vector<int32_t> losses;           // by micro-batch
  int32_t loss_rank = kNone;
};

// Walks one rank's list and keeps what a value's life needs: who made it, whether it is gone.
class RankCheck {
 public:
  RankCheck(const Program& program, int32_t number, Backwards& backwards)
      : program_(program),
        rank_(program.ranks[static_cast<size_t>(number)]),
        number_(number),
        names_(value_names(rank_)),
        maker_(rank_.values.size(), kNobody),
        freed_at_(rank_.values.size(), kNobody),
        versions_(backwards.inputs.size(), kNoVersion),
        backwards_(backwards) {}

  Peak run() {
    check_values();
    begin();
    for (at_ = 0; at_ < static_cast<int32_t>(rank_.instructions.size()); ++at_) {
      const Instruction& instruction = rank_.instructions[static_cast<size_t>(at_)];
      check_references(instruction);
      check_meaning(instruction);
      check_memory(instruction);
    }
    at_ = -1;
    check_end();
    return peak_;
  }

 private:
  static constexpr int32_t kNobody = -2;
  static constexpr int32_t kGiven = -1;
  static constexpr int32_t kNoVersion = -1;

  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    std::string where = program_.ranks.size() > 1 ? cat("rank ", number_, ", ") : "";
    if (at_ >= 0) {
      const Instruction& instruction = rank_.instructions[static_cast<size_t>(at_)];
      where += cat("instruction ", at_, " (", describe(program_, instruction), "): ");
    } else {
      where += "the program: ";
    }
    throw Refusal{{number_, at_, where + cat(parts...)}};
  }

  const Value& value(ValueId id) const { return rank_.values[static_cast<size_t>(id)]; }
  const std::string& name(ValueId id) const { return names_[static_cast<size_t>(id)]; }
  bool is_live(ValueId id) const {
    return maker_[static_cast<size_t>(id)] != kNobody &&
           freed_at_[static_cast<size_t>(id)] == kNobody;
  }

  void check_values() const {
    for (size_t i = 0; i < rank_.values.size(); ++i) {
      const Value& one = rank_.values[i];
      if (one.bytes < 0) {
        refuse(names_[i], " has ", one.bytes, " bytes");
      }
      const bool is_state = one.kind == ValueKind::Saved || one.kind == ValueKind::WeightWork;
      const int32_t last = program_.loss_index() - (is_state ? 1 : 0);
      if (one.layer < 0 || one.layer > last || one.micro_batch < 0 ||
          one.micro_batch >= program_.micro_batches) {
        refuse(names_[i], " belongs to no layer or micro-batch of the program");
      }
    }
  }

  void begin() {
    live_bytes_ = rank_.resident_bytes();
    for (const ValueId id : rank_.given) {
      if (id < 0 || static_cast<size_t>(id) >= rank_.values.size()) {
        refuse("there is no value number ", id, " to be given");
      }
      if (maker_[static_cast<size_t>(id)] != kNobody) {
        refuse(name(id), " is given twice");
      }
      const bool is_input = value(id).kind == ValueKind::Activation && value(id).layer == 0;
      if (!is_input && value(id).kind != ValueKind::Targets) {
        refuse(name(id), " is given; only inputs and targets are there when a step begins");
      }
      maker_[static_cast<size_t>(id)] = kGiven;
      live_bytes_ += value(id).bytes;
    }
    peak_.bytes = live_bytes_;
    if (rank_.limit_bytes > 0 && live_bytes_ > rank_.limit_bytes) {
      refuse("parameters, state and inputs hold ",
             format_count(live_bytes_),
             " bytes before the first instruction; the limit is ",
             format_count(rank_.limit_bytes));
    }
  }

  // Numbers in range, read while live, made once, freed while live.
  void check_references(const Instruction& instruction) {
    for (const auto* list : {&instruction.reads, &instruction.makes, &instruction.frees}) {
      for (const ValueId id : *list) {
        if (id < 0 || static_cast<size_t>(id) >= rank_.values.size()) {
          refuse("there is no value number ", id);
        }
      }
    }
    for (const ValueId id : instruction.reads) {
      require_live(id, "reads");
    }
    for (const ValueId id : instruction.makes) {
      if (maker_[static_cast<size_t>(id)] != kNobody) {
        refuse("makes ", name(id), ", which was ", made_by(id));
      }
      maker_[static_cast<size_t>(id)] = at_;
    }
    for (const ValueId id : instruction.frees) {
      require_live(id, "frees");
      freed_at_[static_cast<size_t>(id)] = at_;
    }
    if (!(instruction.seconds >= 0) || instruction.working_bytes < 0) {
      refuse("has negative seconds or working bytes");
    }
  }

  void require_live(ValueId id, const char* verb) const {
    if (maker_[static_cast<size_t>(id)] == kNobody) {
      refuse(verb, " ", name(id), ", which nothing has made yet");
    }
    if (const int32_t freed_at = freed_at_[static_cast<size_t>(id)]; freed_at == at_) {
      refuse(verb, " ", name(id), " twice");
    } else if (freed_at != kNobody) {
      refuse(verb, " ", name(id), ", which was freed by instruction ", freed_at);
    }
  }

  std::string made_by(ValueId id) const {
    const int32_t maker = maker_[static_cast<size_t>(id)];
    return maker == kGiven ? "given at the start" : cat("made by instruction ", maker);
  }

  // What the operation itself demands of its values.
  void check_meaning(const Instruction& instruction) {
    check_resource(instruction);
    switch (instruction.op) {
      case Op::Clear:
        check_touches_no_values(instruction);
        check_comes_before_last_step();
        if (clears_++ > steps_) {
          refuse("the gradients are cleared a second time");
        }
        if (contributions_ > 0) {
          refuse("clears gradients that already hold a part");
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
          refuse("a drop frees values and does nothing else");
        }
        return;
      case Op::Step:
        check_touches_no_values(instruction);
        if (steps_ >= program_.updates) {
          refuse(program_.updates == 1 ? "a second step" : "more steps than updates");
        }
        check_gradients_complete();
        ++steps_;
        contributions_ = 0;
        return;
      case Op::Stash:
        return check_stash(instruction);
    }
    refuse("no such operation");
  }

  void check_resource(const Instruction& instruction) const {
    const ResourceKind kind = instruction.resource.kind;
    const bool is_link = kind == ResourceKind::Link;
    const bool is_inlet = kind == ResourceKind::Inlet;
    if (is_link != (instruction.op == Op::Send) || is_inlet != (instruction.op == Op::Receive)) {
      refuse("only a send is on a link, only a receive on an inlet");
    }
    const int32_t peer = instruction.resource.index;
    const bool is_rank = peer >= 0 && peer < static_cast<int32_t>(program_.ranks.size());
    if ((is_link || is_inlet) && (!is_rank || peer == number_)) {
      refuse("there is no other rank ", peer);
    }
  }

  void check_transfer(const Instruction& instruction) const {
    const bool is_send = instruction.op == Op::Send;
    check_counts(instruction, is_send ? 1 : 0, is_send ? 0 : 1);
    const Value& moved = value(is_send ? instruction.reads[0] : instruction.makes[0]);
    if (moved.kind != ValueKind::Activation && moved.kind != ValueKind::Gradient) {
      refuse("only activations and gradients go between ranks");
    }
    if (moved.layer != instruction.layer || moved.micro_batch != instruction.micro_batch) {
      refuse("moves ",
             name(is_send ? instruction.reads[0] : instruction.makes[0]),
             ", which is of another layer or micro-batch");
    }
  }

  void check_touches_no_values(const Instruction& instruction) const {
    if (!instruction.reads.empty() || !instruction.makes.empty()) {
      refuse("reads or makes ",
             name(instruction.reads.empty() ? instruction.makes[0] : instruction.reads[0]),
             "; it works on parameters alone");
    }
  }

  // A copy is of the weights as they are.
  void check_stash(const Instruction& instruction) const {
    check_counts(instruction, 0, 1);
    check_comes_before_last_step();
    const Value& copy = value(instruction.makes[0]);
    if (copy.kind != ValueKind::Weights || copy.micro_batch != steps_) {
      refuse(
          "makes ", name(instruction.makes[0]), " of weights that have had ", steps_, " updates");
    }
  }

  // The updates that the weights of a forward, loss or backward have had.
  int32_t weights_version(const Instruction& instruction) const {
    int32_t version = kNoVersion;
    for (const ValueId id : instruction.reads) {
      if (value(id).kind == ValueKind::Weights) {
        if (version != kNoVersion) {
          refuse("reads two versions of the weights");
        }
        version = value(id).micro_batch;
      }
    }
    return version == kNoVersion ? steps_ : version;
  }
  size_t weights_read(const Instruction& instruction) const {
    return static_cast<size_t>(
        std::count_if(instruction.reads.begin(), instruction.reads.end(), [&](ValueId id) {
          return value(id).kind == ValueKind::Weights;
        }));
  }

  // All that is done with a micro-batch at a layer is done with the same weights.
  void check_version(const Instruction& instruction, int32_t layer) {
    const int32_t version = weights_version(instruction);
    int32_t& first = versions_[backwards_.index(layer, instruction.micro_batch)];
    if (first == kNoVersion) {
      first = version;
    } else if (first != version && !program_.mixes_weights) {
      refuse("works with weights after ",
             version,
             " updates, and the micro-batch went forward with those after ",
             first);
    }
  }

  // The gradients that an update takes are those of its micro-batches alone.
  void contribute(const Instruction& instruction) {
    if (const int32_t update = program_.update_of(instruction.micro_batch); update != steps_) {
      refuse("adds to the gradients of update ", steps_, "; the micro-batch is of update ", update);
    }
    ++contributions_;
  }

  void check_micro_batch(const Instruction& instruction) const {
    if (instruction.micro_batch < 0 || instruction.micro_batch >= program_.micro_batches) {
      refuse("there is no micro-batch ", instruction.micro_batch);
    }
    check_comes_before_last_step();
  }

  void check_comes_before_last_step() const {
    if (steps_ >= program_.updates) {
      refuse("comes after the ", program_.updates == 1 ? "" : "last ", "step");
    }
  }

  void check_layer(const Instruction& instruction) const {
    check_micro_batch(instruction);
    if (instruction.layer < 0 || instruction.layer >= program_.loss_index()) {
      refuse("there is no layer ", instruction.layer);
    }
  }

  ValueId read_of(const Instruction& instruction, ValueKind kind, int32_t layer) const {
    return find(instruction, instruction.reads, "read", kind, layer);
  }
  ValueId made_of(const Instruction& instruction, ValueKind kind, int32_t layer) const {
    return find(instruction, instruction.makes, "make", kind, layer);
  }

  ValueId find(const Instruction& instruction,
               const std::vector<ValueId>& list,
               const char* verb,
               ValueKind kind,
               int32_t layer) const {
    for (const ValueId id : list) {
      const Value& one = value(id);
      if (one.kind == kind && one.layer == layer && one.micro_batch == instruction.micro_batch) {
        return id;
      }
    }
    const RankProgram wanted{.values = {{kind, layer, instruction.micro_batch, 0}}};
    refuse("does not ", verb, " ", value_names(wanted)[0]);
  }

  void check_counts(const Instruction& instruction, size_t reads, size_t makes) const {
    if (instruction.reads.size() != reads) {
      refuse("reads ", instruction.reads.size(), " values, not ", reads);
    }
    if (instruction.makes.size() != makes) {
      refuse("makes ", instruction.makes.size(), " values, not ", makes);
    }
  }

  const Way& way(const Instruction& instruction) const {
    const auto& ways = program_.layers[static_cast<size_t>(instruction.layer)].ways;
    if (instruction.keep < 0 || static_cast<size_t>(instruction.keep) >= ways.size()) {
      refuse("the layer has no way of keeping number ", instruction.keep);
    }
    return ways[static_cast<size_t>(instruction.keep)];
  }

  void check_forward(const Instruction& instruction) {
    own(backwards_.rank_of[static_cast<size_t>(instruction.layer)]);
    check_version(instruction, instruction.layer);
    const size_t reads = 1 + weights_read(instruction);
    read_of(instruction, ValueKind::Activation, instruction.layer);
    if (instruction.keep == kKeepNothing) {
      check_counts(instruction, reads, 1);
      made_of(instruction, ValueKind::Activation, instruction.layer + 1);
      return;
    }
    made_of(instruction, ValueKind::Saved, instruction.layer);
    // Run again for its backward alone, it may leave out an output that backward does not need.
    const bool leaves_output_out = instruction.makes.size() == 1 && !way(instruction).needs_output;
    check_counts(instruction, reads, leaves_output_out ? 1 : 2);
    if (!leaves_output_out) {
      made_of(instruction, ValueKind::Activation, instruction.layer + 1);
    }
  }

  void check_loss(const Instruction& instruction) {
    const int32_t last = program_.loss_index();
    check_counts(instruction, 2 + weights_read(instruction), last > 0 ? 1 : 0);
    read_of(instruction, ValueKind::Activation, last);
    read_of(instruction, ValueKind::Targets, last);
    if (last > 0) {
      made_of(instruction, ValueKind::Gradient, last);
      check_version(instruction, last - 1);
    }
    contribute(instruction);
    if (backwards_.losses[static_cast<size_t>(instruction.micro_batch)]++ > 0) {
      refuse("a second loss of this micro-batch");
    }
    own(backwards_.loss_rank);
  }

  void check_backward(const Instruction& instruction) {
    const ValueId saved = read_of(instruction, ValueKind::Saved, instruction.layer);
    const int32_t forward = maker_[static_cast<size_t>(saved)];
    const Way& kept = way(rank_.instructions[static_cast<size_t>(forward)]);
    const bool is_half = instruction.op == Op::BackwardInput;
    check_version(instruction, instruction.layer);
    check_counts(instruction,
                 (kept.needs_output ? 4 : 3) + weights_read(instruction),
                 static_cast<size_t>(instruction.layer > 0) + static_cast<size_t>(is_half));
    read_of(instruction, ValueKind::Activation, instruction.layer);
    read_of(instruction, ValueKind::Gradient, instruction.layer + 1);
    if (kept.needs_output) {
      const ValueId output = read_of(instruction, ValueKind::Activation, instruction.layer + 1);
      if (maker_[static_cast<size_t>(output)] != forward) {
        refuse("reads ", name(saved), " and ", name(output), ", which were made apart");
      }
    }
    if (instruction.layer > 0) {
      made_of(instruction, ValueKind::Gradient, instruction.layer);
    }
    const size_t index = backwards_.index(instruction.layer, instruction.micro_batch);
    if (is_half) {
      made_of(instruction, ValueKind::WeightWork, instruction.layer);
    } else {
      contribute(instruction);
      ++backwards_.weights[index];
    }
    if (backwards_.inputs[index]++ > 0) {
      refuse("a second backward of this layer and micro-batch");
    }
    own(backwards_.rank_of[static_cast<size_t>(instruction.layer)]);
  }

  void check_backward_weight(const Instruction& instruction) {
    check_counts(instruction, 1, 0);
    read_of(instruction, ValueKind::WeightWork, instruction.layer);
    check_version(instruction, instruction.layer);
    contribute(instruction);
    if (backwards_.weights[backwards_.index(instruction.layer, instruction.micro_batch)]++ > 0) {
      refuse("a second weight half of this layer and micro-batch");
    }
  }

  // The parameters of a layer, or of the loss, are with one rank.
  void own(int32_t& owner) const {
    if (owner != Backwards::kNone && owner != number_) {
      refuse("rank ", owner, " has this layer's parameters");
    }
    owner = number_;
  }

  void check_gradients_complete() const {
    if (clears_ <= steps_) {
      refuse("the gradients were never cleared");
    }
    const bool is_alone = program_.ranks.size() == 1;
    const int32_t count = program_.micro_batches / program_.updates;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t micro_batch = steps_ * count + i;
      if ((is_alone || backwards_.loss_rank == number_) &&
          backwards_.losses[static_cast<size_t>(micro_batch)] == 0) {
        refuse("the loss of micro-batch ", micro_batch, " is missing");
      }
      for (int32_t layer = 0; layer < program_.loss_index(); ++layer) {
        if (is_alone || backwards_.rank_of[static_cast<size_t>(layer)] == number_) {
          check_backward_complete(layer, micro_batch);
        }
      }
    }
  }

  void check_backward_complete(int32_t layer, int32_t micro_batch) const {
    const size_t index = backwards_.index(layer, micro_batch);
    if (backwards_.inputs[index] == 0 || backwards_.weights[index] == 0) {
      refuse(backwards_.inputs[index] == 0 ? "the backward of " : "the weight half of ",
             program_.layers[static_cast<size_t>(layer)].name,
             ", micro-batch ",
             micro_batch,
             ", is missing");
    }
  }

  void check_memory(const Instruction& instruction) {
    int64_t settled = live_bytes_;
    for (const ValueId id : instruction.makes) {
      settled += value(id).bytes;
    }
    for (const ValueId id : instruction.frees) {
      settled -= value(id).bytes;
    }
    if (live_bytes_ + instruction.working_bytes < settled) {
      refuse("works with ",
             format_count(instruction.working_bytes),
             " bytes, less than what it leaves behind");
    }
    const int64_t held = live_bytes_ + instruction.working_bytes;
    if (held > peak_.bytes) {
      peak_ = {held, at_};
    }
    if (rank_.limit_bytes > 0 && held > rank_.limit_bytes) {
      const ValueId largest = largest_held();
      refuse("holds ",
             format_count(held),
             " bytes, ",
             format_count(held - rank_.limit_bytes),
             " over the limit of ",
             format_count(rank_.limit_bytes),
             largest < 0 ? "" : cat("; the largest value then is ", name(largest)));
    }
    live_bytes_ = settled;
  }

  // What this instruction frees is still there while it runs.
  ValueId largest_held() const {
    ValueId largest = -1;
    for (size_t i = 0; i < rank_.values.size(); ++i) {
      const ValueId id = static_cast<ValueId>(i);
      if ((is_live(id) || freed_at_[i] == at_) &&
          (largest < 0 || value(id).bytes > value(largest).bytes)) {
        largest = id;
      }
    }
    return largest;
  }

  void check_end() const {
    for (size_t i = 0; i < rank_.values.size(); ++i) {
      const ValueId id = static_cast<ValueId>(i);
      if (maker_[i] == kNobody) {
        refuse(names_[i], " is never made");
      }
      if (is_live(id)) {
        refuse(names_[i], ", ", made_by(id), ", is never freed");
      }
    }
    if (steps_ < program_.updates) {
      refuse(program_.updates == 1
                 ? "there is no step"
                 : cat("there are ", steps_, " steps for ", program_.updates, " updates"));
    }
  }

  const Program& program_;
  const RankProgram& rank_;
  const int32_t number_;
  const std::vector<std::string> names_;
  int32_t at_ = -1;
  std::vector<int32_t> maker_, freed_at_;  // per value: instruction, or kNobody
  std::vector<int32_t> versions_;          // by layer and micro-batch: updates of its weights
  Backwards& backwards_;
  int32_t clears_ = 0, steps_ = 0, contributions_ = 0;
  int64_t live_bytes_ = 0;
  Peak peak_;
};

// What no rank does.
std::optional<Violation> find_gap(const Program& program, const Backwards& backwards) {
  for (size_t layer = 0; layer < backwards.layers; ++layer) {
    if (backwards.rank_of[layer] == Backwards::kNone) {
      return Violation{.text = cat("the program: no rank has ", program.layers[layer].name)};
    }
  }
  if (backwards.loss_rank == Backwards::kNone) {
    return Violation{.text = "the program: no rank has the loss"};
  }
  return std::nullopt;
}

}  // namespace

Verdict verify(const Program& program) {
  Verdict verdict;
  if (program.ranks.empty()) {
    verdict.violation = Violation{.text = "the program has no rank"};
  }
  if (program.updates < 1 || program.micro_batches % program.updates != 0) {
    verdict.violation = Violation{.text = cat("the program: ",
                                              program.updates,
                                              " updates of ",
                                              program.micro_batches,
                                              " micro-batches")};
    return verdict;
  }
  try {
    Backwards backwards(program);
    for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
      verdict.peaks.push_back(RankCheck(program, static_cast<int32_t>(rank), backwards).run());
    }
    if (program.ranks.size() > 1) {
      verdict.violation = find_gap(program, backwards);
    }
    if (program.ranks.size() > 1 && verdict.is_sound()) {
      verdict.violation = find_endless_wait(program);
    }
  } catch (Refusal& refusal) {
    verdict.violation = std::move(refusal.violation);
    verdict.peaks.clear();
  }
  return verdict;
}

Peak replay_peak(const RankProgram& rank) {
  int64_t live = rank.resident_bytes();
  live += rank.bytes_of(rank.given);
  Peak peak{live, -1};
  for (size_t i = 0; i < rank.instructions.size(); ++i) {
    const Instruction& instruction = rank.instructions[i];
    if (live + instruction.working_bytes > peak.bytes) {
      peak = {live + instruction.working_bytes, static_cast<int32_t>(i)};
    }
    live += rank.bytes_of(instruction.makes) - rank.bytes_of(instruction.frees);
  }
  return peak;
}

}  // namespace penstock::program
