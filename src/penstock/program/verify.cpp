#include "penstock/program/verify.h"

#include <algorithm>

#include "penstock/base/error.h"
#include "penstock/base/units.h"

namespace penstock::program {

namespace {

// Thrown inside this file alone; verify() turns it into its answer.
struct Refusal {
  Violation violation;
};

// Walks one rank's list and keeps what a value's life needs: who made it, whether it is gone.
class RankCheck {
 public:
  RankCheck(const Program& program, int32_t number)
      : program_(program),
        rank_(program.ranks[static_cast<size_t>(number)]),
        number_(number),
        names_(value_names(rank_)),
        maker_(rank_.values.size(), kNobody),
        freed_at_(rank_.values.size(), kNobody),
        backwards_(program.layers.size() * static_cast<size_t>(program.micro_batches), 0),
        losses_(static_cast<size_t>(program.micro_batches), 0) {}

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
      const bool is_state = one.kind == ValueKind::Saved;
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
    switch (instruction.op) {
      case Op::Clear:
        check_touches_no_values(instruction);
        if (clears_++ > 0) {
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
        check_layer(instruction);
        return check_backward(instruction);
      case Op::Drop:
        if (!instruction.reads.empty() || !instruction.makes.empty() || instruction.frees.empty()) {
          refuse("a drop frees values and does nothing else");
        }
        return;
      case Op::Step:
        check_touches_no_values(instruction);
        if (steps_++ > 0) {
          refuse("a second step");
        }
        check_gradients_complete();
        return;
    }
    refuse("no such operation");
  }

  void check_touches_no_values(const Instruction& instruction) const {
    if (!instruction.reads.empty() || !instruction.makes.empty()) {
      refuse("reads or makes ",
             name(instruction.reads.empty() ? instruction.makes[0] : instruction.reads[0]),
             "; it works on parameters alone");
    }
  }

  void check_micro_batch(const Instruction& instruction) const {
    if (instruction.micro_batch < 0 || instruction.micro_batch >= program_.micro_batches) {
      refuse("there is no micro-batch ", instruction.micro_batch);
    }
    if (steps_ > 0) {
      refuse("comes after the step");
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

  void check_forward(const Instruction& instruction) const {
    read_of(instruction, ValueKind::Activation, instruction.layer);
    if (instruction.keep == kKeepNothing) {
      check_counts(instruction, 1, 1);
      made_of(instruction, ValueKind::Activation, instruction.layer + 1);
      return;
    }
    made_of(instruction, ValueKind::Saved, instruction.layer);
    // Run again for its backward alone, it may leave out an output that backward does not need.
    const bool leaves_output_out = instruction.makes.size() == 1 && !way(instruction).needs_output;
    check_counts(instruction, 1, leaves_output_out ? 1 : 2);
    if (!leaves_output_out) {
      made_of(instruction, ValueKind::Activation, instruction.layer + 1);
    }
  }

  void check_loss(const Instruction& instruction) {
    const int32_t last = program_.loss_index();
    check_counts(instruction, 2, last > 0 ? 1 : 0);
    read_of(instruction, ValueKind::Activation, last);
    read_of(instruction, ValueKind::Targets, last);
    if (last > 0) {
      made_of(instruction, ValueKind::Gradient, last);
    }
    ++contributions_;
    if (losses_[static_cast<size_t>(instruction.micro_batch)]++ > 0) {
      refuse("a second loss of this micro-batch");
    }
  }

  void check_backward(const Instruction& instruction) {
    const ValueId saved = read_of(instruction, ValueKind::Saved, instruction.layer);
    const int32_t forward = maker_[static_cast<size_t>(saved)];
    const Way& kept = way(rank_.instructions[static_cast<size_t>(forward)]);
    check_counts(instruction, kept.needs_output ? 4 : 3, instruction.layer > 0 ? 1 : 0);
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
    ++contributions_;
    if (backwards_[backward_index(instruction.layer, instruction.micro_batch)]++ > 0) {
      refuse("a second backward of this layer and micro-batch");
    }
  }

  size_t backward_index(int32_t layer, int32_t micro_batch) const {
    return static_cast<size_t>(micro_batch) * program_.layers.size() + static_cast<size_t>(layer);
  }

  void check_gradients_complete() const {
    if (clears_ == 0) {
      refuse("the gradients were never cleared");
    }
    for (int32_t micro_batch = 0; micro_batch < program_.micro_batches; ++micro_batch) {
      if (losses_[static_cast<size_t>(micro_batch)] == 0) {
        refuse("the loss of micro-batch ", micro_batch, " is missing");
      }
      for (int32_t layer = 0; layer < program_.loss_index(); ++layer) {
        if (backwards_[backward_index(layer, micro_batch)] == 0) {
          refuse("the backward of ",
                 program_.layers[static_cast<size_t>(layer)].name,
                 ", micro-batch ",
                 micro_batch,
                 ", is missing");
        }
      }
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
    if (steps_ == 0) {
      refuse("there is no step");
    }
  }

  const Program& program_;
  const RankProgram& rank_;
  const int32_t number_;
  const std::vector<std::string> names_;
  int32_t at_ = -1;
  std::vector<int32_t> maker_, freed_at_;  // per value: instruction, or kNobody
  std::vector<int32_t> backwards_, losses_;
  int32_t clears_ = 0, steps_ = 0, contributions_ = 0;
  int64_t live_bytes_ = 0;
  Peak peak_;
};

}  // namespace

Verdict verify(const Program& program) {
  Verdict verdict;
  if (program.ranks.empty()) {
    verdict.violation = Violation{.text = "the program has no rank"};
  }
  try {
    for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
      verdict.peaks.push_back(RankCheck(program, static_cast<int32_t>(rank)).run());
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
