// What verify() demands of gathers and reduces, and of the values that only a program of replicas
// has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/program/program.h"
#include "penstock/program/rank_lives.h"

namespace penstock::program {

// Replicas and units themselves.
std::optional<Violation> find_wrong_units(const Program& program);

// One rank's list, beside the checks of its layers. In a program without replicas no layer has a
// unit, and there is nothing to demand.
class ReplicaCheck {
 public:
  explicit ReplicaCheck(const RankLives& lives);

  // What an instruction of a layer (or the loss) reads and makes for the layer's units.
  struct Extra {
    size_t reads = 0, makes = 0;
  };
  Extra check_units_of(const Instruction& instruction, int32_t layer) const;
  // The instruction adds to the gradients of the layer's units.
  void contribute(const Instruction& instruction, int32_t layer);

  void check_frees(const Instruction& instruction) const;  // of any instruction
  void check_peer(int32_t peer) const;
  void check_gather(const Instruction& instruction);
  void check_reduce(const Instruction& instruction);
  void check_step(const Instruction& instruction);  // once all gradients are there
  void check_end() const;

 private:
  const std::vector<int32_t>& units_of(int32_t layer) const {
    return units_of_[static_cast<size_t>(layer)];
  }
  const std::string& unit_name(int32_t unit) const;
  void check_collective(const Instruction& instruction) const;
  void check_is_for_all(const Instruction& instruction) const;
  void reduce_resident(const Instruction& instruction);
  void reduce_bucket(const Instruction& instruction);
  void require_reduced() const;

  const RankLives& lives_;
  const Program& program_;
  std::vector<std::vector<int32_t>> units_of_;  // by layer, then the loss
  std::vector<bool> is_own_;                    // by unit: the rank runs a layer of it
  std::vector<int32_t> reduced_, gathered_;     // by unit: how often
  // By value: buckets that all of their gradient has been added to, and those that were reduced.
  std::vector<bool> is_complete_, is_reduced_;
  bool has_stepped_ = false;
};

}  // namespace penstock::program
