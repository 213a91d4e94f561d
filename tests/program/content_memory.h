// The bytes that a rank holds on each tier, by the order of its list.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "penstock/program/program.h"

#include "program/content_facts.h"

namespace penstock::test {

class RankMemory {
 public:
  using Bytes = std::array<int64_t, program::kNumTiers>;

  explicit RankMemory(const program::RankProgram& rank)
      : rank_(rank), limits_{rank.limit_bytes, rank.host_limit_bytes, rank.disk_limit_bytes} {
    for (const auto* list : {&rank.persistent, &rank.given}) {
      for (const program::ValueId id : *list) {
        of(id, held_) += value(id).bytes;
      }
    }
    rise_to(held_);
  }

  void pass(const program::Instruction& one) {
    if (one.working_bytes < 0 || one.sent_bytes < 0) {
      harm("works with less than nothing");
    }
    Bytes after = held_, most = held_;
    for (const program::ValueId id : one.makes) {
      of(id, after) += value(id).bytes;
      of(id, most) += value(id).bytes;
    }
    for (const program::ValueId id : one.frees) {
      of(id, after) -= value(id).bytes;
    }
    // On the device the instruction says itself what it needs.
    most[0] = held_[0] + one.working_bytes;
    if (after[0] > most[0]) {
      harm("leaves more on the device than it says that it needs");
    }
    rise_to(most);
    held_ = after;
  }

  const Bytes& peaks() const { return peaks_; }

 private:
  const program::Value& value(program::ValueId id) const {
    return rank_.values[static_cast<size_t>(id)];
  }
  int64_t& of(program::ValueId id, Bytes& bytes) const {
    return bytes[static_cast<size_t>(value(id).tier)];
  }
  void rise_to(const Bytes& bytes) {
    for (size_t tier = 0; tier < bytes.size(); ++tier) {
      peaks_[tier] = std::max(peaks_[tier], bytes[tier]);
      if (limits_[tier] != 0 && bytes[tier] > limits_[tier]) {
        harm("exceeds a limit");
      }
    }
  }

  const program::RankProgram& rank_;
  const Bytes limits_;  // 0: none
  Bytes held_ = {}, peaks_ = {};
};

}  // namespace penstock::test
