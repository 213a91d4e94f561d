#include "penstock/program/rank_lives.h"

#include <algorithm>

#include "penstock/base/units.h"

namespace penstock::program {

namespace {

// Whether the fields that a kind has are in range, and the others are not set.
bool has_right_fields(const Program& program, const RankProgram& rank, const Value& value) {
  const ValueKindInfo& info = info_of(value.kind);
  const auto is_right = [](bool has_it, int32_t field, size_t end) {
    return has_it ? field >= 0 && static_cast<size_t>(field) < end : field == -1;
  };
  const bool is_of_work = value.kind == ValueKind::Saved || value.kind == ValueKind::WeightWork;
  const size_t layers = program.layers.size() + (is_of_work ? 0 : 1);
  const bool has_slices = info.has_unit && info.is_persistent;
  return is_right(info.has_layer, value.layer, layers) &&
         is_right(info.has_element, value.element, program.carried.size()) &&
         is_right(info.has_unit, value.unit, program.units.size()) &&
         is_right(
             info.has_micro_batch, value.micro_batch, static_cast<size_t>(program.micro_batches)) &&
         is_right(info.has_version, value.version, static_cast<size_t>(program.updates)) &&
         is_right(info.has_label, value.label, rank.labels.size()) &&
         (has_slices || value.slices.empty());
}

}  // namespace

RankLives::RankLives(const Program& program, int32_t number)
    : program_(program),
      rank_(program.ranks[static_cast<size_t>(number)]),
      number_(number),
      names_(value_names(rank_)),
      maker_(rank_.values.size(), kNobody),
      freed_at_(rank_.values.size(), kNobody),
      tiers_(tiers_of(rank_)) {}

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
    if (!has_right_fields(program_, rank_, one)) {
      refuse(names_[i], " belongs to no layer, unit, micro-batch or update of the program");
    }
    if (one.kind == ValueKind::CarriedGradient &&
        !program_.carried[static_cast<size_t>(one.element)].has_gradient) {
      refuse(names_[i],
             " is a gradient of ",
             program_.carried[static_cast<size_t>(one.element)].name,
             ", which has none");
    }
    for (size_t k = 0; k < one.slices.size(); ++k) {
      const Slice& slice = one.slices[k];
      const int64_t before = k == 0 ? 0 : one.slices[k - 1].end;
      const bool is_nothing = one.slices.size() == 1 && slice == Slice{};
      if (slice.first < before || (slice.end <= slice.first && !is_nothing) ||
          slice.end > program_.units[static_cast<size_t>(one.unit)].elements) {
        refuse(names_[i], " has slices that are empty, out of order or out of range");
      }
    }
  }
}

void RankLives::hold(ValueId id, int32_t maker, const char* verb) {
  if (id < 0 || static_cast<size_t>(id) >= rank_.values.size()) {
    refuse("there is no value number ", id, " to be ", verb);
  }
  if (maker_[static_cast<size_t>(id)] != kNobody) {
    refuse(name(id), " is ", verb, " twice");
  }
  maker_[static_cast<size_t>(id)] = maker;
  live_bytes(value(id)) += value(id).bytes;
}

void RankLives::begin() {
  check_values();
  for (const ValueId id : rank_.persistent) {
    hold(id, kPersistent, "held");
    if (!info_of(value(id).kind).is_persistent) {
      refuse(name(id), " is held from step to step; only weights, gradients and state are");
    }
  }
  for (const ValueId id : rank_.given) {
    hold(id, kGiven, "given");
    const bool is_input = value(id).kind == ValueKind::Activation && value(id).layer == 0;
    const bool is_of_batch = value(id).kind == ValueKind::Carried &&
                             program_.carried[static_cast<size_t>(value(id).element)].born < 0;
    if (!is_input && !is_of_batch && value(id).kind != ValueKind::Targets) {
      refuse(name(id), " is given; only inputs and targets are there when a step begins");
    }
  }
  peak_.bytes = live_bytes_[0];
  peak_.tier_bytes = live_bytes_;
  for (const Tier tier : kTiers) {
    const int64_t limit = rank_.limit_of(tier);
    if (limit < 0) {
      refuse("the limit of the ", tier_name(tier), " is ", limit, " bytes");
    }
    if (const int64_t held = live_bytes_[static_cast<size_t>(tier)]; limit > 0 && held > limit) {
      refuse("weights, state and inputs hold ",
             format_count(held),
             " bytes",
             tier == Tier::Device ? "" : cat(" of the ", tier_name(tier)),
             " before the first instruction; the limit is ",
             format_count(limit));
    }
  }
}

void RankLives::enter(int32_t at) {
  at_ = at;
  const Instruction& instruction = rank_.instructions[static_cast<size_t>(at)];
  for (const auto* list : {&instruction.reads,
                           &instruction.makes,
                           &instruction.sets,
                           &instruction.updates,
                           &instruction.frees}) {
    for (const ValueId id : *list) {
      if (id < 0 || static_cast<size_t>(id) >= rank_.values.size()) {
        refuse("there is no value number ", id);
      }
    }
  }
  for (const ValueId id : instruction.reads) {
    require_live(id, "reads");
  }
  for (const auto* list : {&instruction.sets, &instruction.updates}) {
    for (const ValueId id : *list) {
      require_live(id, "changes");
      const bool is_sum =
          value(id).kind == ValueKind::Bucket || value(id).kind == ValueKind::CarriedGradient;
      if (value(id).kind == ValueKind::Fixed ||
          (!info_of(value(id).kind).is_persistent && !is_sum)) {
        refuse("changes ", name(id), "; only weights, gradients and state are changed in place");
      }
    }
  }
  for (const ValueId id : instruction.makes) {
    if (maker_[static_cast<size_t>(id)] != kNobody) {
      refuse("makes ", name(id), ", which was ", made_by(id));
    }
    maker_[static_cast<size_t>(id)] = at_;
  }
  for (const ValueId id : instruction.frees) {
    require_live(id, "frees");
    if (maker_[static_cast<size_t>(id)] == kPersistent) {
      refuse("frees ", name(id), ", which is held from step to step");
    }
    freed_at_[static_cast<size_t>(id)] = at_;
  }
  if (!(instruction.seconds >= 0) || instruction.working_bytes < 0 || instruction.sent_bytes < 0) {
    refuse("has negative seconds, working bytes or sent bytes");
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
  return maker == kPersistent ? "held from step to step"
         : maker == kGiven    ? "given at the start"
                              : cat("made by instruction ", maker);
}

ValueId RankLives::find(const Instruction& instruction,
                        const std::vector<ValueId>& list,
                        const char* verb,
                        ValueKind kind,
                        int32_t place) const {
  for (const ValueId id : list) {
    const Value& one = value(id);
    const bool is_there = (!info_of(kind).has_layer || one.layer == place) &&
                          (!info_of(kind).has_element || one.element == place);
    if (one.kind == kind && is_there && one.micro_batch == instruction.micro_batch) {
      return id;
    }
  }
  refuse("does not ", verb, " ", name_of(layer_value(kind, place, instruction.micro_batch, 0)));
}

void RankLives::check_counts(const Instruction& instruction, const Counts& counts) const {
  if (instruction.reads.size() != counts.reads) {
    refuse("reads ", instruction.reads.size(), " values, not ", counts.reads);
  }
  if (instruction.makes.size() != counts.makes) {
    refuse("makes ", instruction.makes.size(), " values, not ", counts.makes);
  }
  const size_t changes = instruction.sets.size() + instruction.updates.size();
  if (changes != counts.changes) {
    refuse("changes ", changes, " values in place, not ", counts.changes);
  }
}

void RankLives::leave() {
  const Instruction& instruction = rank_.instructions[static_cast<size_t>(at_)];
  for (const Tier tier : tiers_) {
    settle(tier, instruction);
  }
}

// An instruction works on the device; what it leaves on another tier is there while it runs.
void RankLives::settle(Tier tier, const Instruction& instruction) {
  int64_t& live = live_bytes_[static_cast<size_t>(tier)];
  const int64_t made = rank_.bytes_of(instruction.makes, tier);
  const int64_t settled = live + made - rank_.bytes_of(instruction.frees, tier);
  const bool is_device = tier == Tier::Device;
  const int64_t held = live + (is_device ? instruction.working_bytes : made);
  if (held < settled) {
    refuse("works with ",
           format_count(instruction.working_bytes),
           " bytes, less than what it leaves behind");
  }
  if (is_device && held > peak_.bytes) {
    peak_.bytes = held;
    peak_.instruction = at_;
  }
  int64_t& most = peak_.tier_bytes[static_cast<size_t>(tier)];
  most = std::max(most, held);
  if (const int64_t limit = rank_.limit_of(tier); limit > 0 && held > limit) {
    const ValueId largest = largest_held(tier);
    refuse("holds ",
           format_count(held),
           " bytes",
           is_device ? ", " : cat(" of the ", tier_name(tier), ", "),
           format_count(held - limit),
           " over the limit of ",
           format_count(limit),
           largest < 0 ? "" : cat("; the largest value then is ", name(largest)));
  }
  live = settled;
}

// What this instruction frees is still there while it runs.
ValueId RankLives::largest_held(Tier tier) const {
  ValueId largest = -1;
  for (size_t i = 0; i < rank_.values.size(); ++i) {
    const ValueId id = static_cast<ValueId>(i);
    if ((is_live(id) || freed_at_[i] == at_) && maker_[i] != kPersistent &&
        value(id).tier == tier && (largest < 0 || value(id).bytes > value(largest).bytes)) {
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
    if (is_live(id) && maker_[i] != kPersistent) {
      refuse(names_[i], ", ", made_by(id), ", is never freed");
    }
  }
}

}  // namespace penstock::program
