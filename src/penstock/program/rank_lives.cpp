#include "penstock/program/rank_lives.h"

#include "penstock/base/units.h"

namespace penstock::program {

namespace {

// One past the last layer or unit that a value of this kind can be of.
int32_t end_of_layers(const Program& program, ValueKind kind) {
  if (is_of_a_unit(kind)) {
    return static_cast<int32_t>(program.units.size());
  }
  const bool is_state = kind == ValueKind::Saved || kind == ValueKind::WeightWork;
  return program.loss_index() + (is_state ? 0 : 1);
}

}  // namespace

RankLives::RankLives(const Program& program, int32_t number)
    : program_(program),
      rank_(program.ranks[static_cast<size_t>(number)]),
      number_(number),
      names_(value_names(rank_)),
      maker_(rank_.values.size(), kNobody),
      freed_at_(rank_.values.size(), kNobody) {}

std::string RankLives::place() const {
  const std::string where = program_.ranks.size() > 1 ? cat("rank ", number_, ", ") : "";
  if (at_ < 0) {
    return where + "the program: ";
  }
  const Instruction& instruction = rank_.instructions[static_cast<size_t>(at_)];
  return cat(where, "instruction ", at_, " (", describe(program_, instruction), "): ");
}

void RankLives::check_values() const {
  for (size_t i = 0; i < rank_.values.size(); ++i) {
    const Value& one = rank_.values[i];
    if (one.bytes < 0) {
      refuse(names_[i], " has ", one.bytes, " bytes");
    }
    if (one.layer < 0 || one.layer >= end_of_layers(program_, one.kind) || one.micro_batch < 0 ||
        one.micro_batch >= program_.micro_batches) {
      refuse(names_[i],
             " belongs to no ",
             is_of_a_unit(one.kind) ? "unit" : "layer",
             " or micro-batch of the program");
    }
  }
}

void RankLives::begin() {
  check_values();
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

void RankLives::enter(int32_t at) {
  at_ = at;
  const Instruction& instruction = rank_.instructions[static_cast<size_t>(at)];
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

void RankLives::require_live(ValueId id, const char* verb) const {
  if (maker_[static_cast<size_t>(id)] == kNobody) {
    refuse(verb, " ", name(id), ", which nothing has made yet");
  }
  if (const int32_t freed_at = freed_at_[static_cast<size_t>(id)]; freed_at == at_) {
    refuse(verb, " ", name(id), " twice");
  } else if (freed_at != kNobody) {
    refuse(verb, " ", name(id), ", which was freed by instruction ", freed_at);
  }
}

std::string RankLives::made_by(ValueId id) const {
  const int32_t maker = maker_[static_cast<size_t>(id)];
  return maker == kGiven ? "given at the start" : cat("made by instruction ", maker);
}

ValueId RankLives::find(const Instruction& instruction,
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

void RankLives::check_counts(const Instruction& instruction, size_t reads, size_t makes) const {
  if (instruction.reads.size() != reads) {
    refuse("reads ", instruction.reads.size(), " values, not ", reads);
  }
  if (instruction.makes.size() != makes) {
    refuse("makes ", instruction.makes.size(), " values, not ", makes);
  }
}

void RankLives::leave() {
  const Instruction& instruction = rank_.instructions[static_cast<size_t>(at_)];
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
ValueId RankLives::largest_held() const {
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

void RankLives::end() {
  at_ = -1;
  for (size_t i = 0; i < rank_.values.size(); ++i) {
    const ValueId id = static_cast<ValueId>(i);
    if (maker_[i] == kNobody) {
      refuse(names_[i], " is never made");
    }
    if (is_live(id)) {
      refuse(names_[i], ", ", made_by(id), ", is never freed");
    }
  }
}

}  // namespace penstock::program
