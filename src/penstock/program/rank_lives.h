// The lives of a rank's values, as verify() walks its list: who made each, whether it is gone, and
// how many bytes are held.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/program/program.h"
#include "penstock/program/verify.h"

namespace penstock::program {

// Thrown while a program is checked; verify() turns it into its answer.
struct Refusal {
  Violation violation;
};

class RankLives {
 public:
  RankLives(const Program& program, int32_t number);

  // In this order: begin, then for each instruction enter and (when its meaning is right) leave,
  // then end.
  void begin();
  void enter(int32_t at);  // numbers in range, read while live, made once, freed while live
  void leave();            // its memory
  void end();

  const Program& program() const { return program_; }
  const RankProgram& rank() const { return rank_; }
  int32_t number() const { return number_; }
  const Value& value(ValueId id) const { return rank_.values[static_cast<size_t>(id)]; }
  const std::string& name(ValueId id) const { return names_[static_cast<size_t>(id)]; }
  bool is_live(ValueId id) const {
    return maker_[static_cast<size_t>(id)] != kNobody &&
           freed_at_[static_cast<size_t>(id)] == kNobody;
  }
  // What made a value that is not given.
  int32_t maker_index(ValueId id) const { return maker_[static_cast<size_t>(id)]; }
  const Instruction& maker(ValueId id) const {
    return rank_.instructions[static_cast<size_t>(maker_index(id))];
  }
  Peak peak() const { return peak_; }

  // The value that the instruction reads, makes or updates; refuses it where there is none. `place`:
  // the layer, or the element of a carried value.
  ValueId read_of(const Instruction& instruction, ValueKind kind, int32_t place) const {
    return find(instruction, instruction.reads, "read", kind, place);
  }
  ValueId made_of(const Instruction& instruction, ValueKind kind, int32_t place) const {
    return find(instruction, instruction.makes, "make", kind, place);
  }
  ValueId updated_of(const Instruction& instruction, ValueKind kind, int32_t place) const {
    return find(instruction, instruction.updates, "update", kind, place);
  }
  // How many values it reads, makes, and changes in place.
  struct Counts {
    size_t reads = 0, makes = 0, changes = 0;
  };
  void check_counts(const Instruction& instruction, const Counts& counts) const;

  // Names the present instruction; the program, where the walk has ended or not begun.
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw Refusal{{number_, at_, place() + cat(parts...)}};
  }

 private:
  static constexpr int32_t kNobody = -3;
  static constexpr int32_t kPersistent = -2;
  static constexpr int32_t kGiven = -1;

  std::string place() const;
  void check_values() const;
  void require_live(ValueId id, const char* verb) const;
  std::string made_by(ValueId id) const;
  ValueId find(const Instruction& instruction,
               const std::vector<ValueId>& list,
               const char* verb,
               ValueKind kind,
               int32_t place) const;
  ValueId largest_held(Tier tier) const;
  void hold(ValueId id, int32_t maker, const char* verb);
  int64_t& live_bytes(const Value& value) { return live_bytes_[static_cast<size_t>(value.tier)]; }
  void settle(Tier tier, const Instruction& instruction);

  const Program& program_;
  const RankProgram& rank_;
  const int32_t number_;
  const std::vector<std::string> names_;
  int32_t at_ = -1;
  std::vector<int32_t> maker_, freed_at_;  // per value: instruction, or kNobody
  std::vector<Tier> tiers_;                // that hold anything
  std::array<int64_t, kNumTiers> live_bytes_ = {};
  Peak peak_;
};

}  // namespace penstock::program
