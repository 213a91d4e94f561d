// What verify() demands of what layers change beside gradients: one rank's list, beside the checks of
// its layers.
//
// The first forward of a layer and micro-batch updates the layer's state; one that is recomputed, and
// every forward of an evaluation, reads it. A step updates the state too: what forwards have left is
// what the next update begins with. Before it, replicas merge what each of them has changed.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "penstock/program/program.h"
#include "penstock/program/rank_lives.h"

namespace penstock::program {

class LayerStateCheck {
 public:
  explicit LayerStateCheck(const RankLives& lives);

  // What an instruction reads and changes of the state of layers.
  RankLives::Counts check_forward(const Instruction& instruction);
  RankLives::Counts check_step(const Instruction& instruction) const;
  void check_merge(const Instruction& instruction);
  void end_update() { is_merged_ = false; }
  void check_end() const;

 private:
  static constexpr ValueId kNone = -1;

  ValueId state_of(int32_t layer) const { return states_[static_cast<size_t>(layer)]; }
  void require_update(const Instruction& instruction, ValueId id) const;

  const RankLives& lives_;
  const Program& program_;
  std::vector<ValueId> states_;  // by layer
  std::vector<ValueId> held_;
  std::set<std::pair<int32_t, int32_t>> done_;  // layer and micro-batch: its first forward
  std::set<int32_t> layers_;                    // that the rank runs
  bool is_merged_ = false;                      // in this update
};

}  // namespace penstock::program
