// What verify() demands of weights, gradients and state: one rank's list, beside the checks of its
// layers. In a program without units there is nothing to demand.
//
// A gradient is known by its parts: the work at a layer for a micro-batch that was added to it. It
// is complete when it has all parts of the update, from all ranks that have any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "penstock/program/program.h"
#include "penstock/program/rank_lives.h"

namespace penstock::program {

// Units themselves, and how ranks have divided them.
std::optional<Violation> find_wrong_units(const Program& program);

class UnitCheck {
 public:
  explicit UnitCheck(const RankLives& lives);

  // What an instruction at a layer (or the loss) reads, makes and changes for the layer's units.
  // `reads_copy`: its weights are those of a copy.
  RankLives::Counts check_work(const Instruction& instruction, int32_t layer, bool reads_copy);

  // The updates that the weights of a layer (or the loss) have had; nothing where it has none.
  std::optional<int32_t> version_of(int32_t layer) const;

  void check_frees(const Instruction& instruction) const;  // of any instruction
  void check_peer(int32_t peer) const;
  void check_stash(const Instruction& instruction) const;
  void check_gather(const Instruction& instruction);
  void check_reduce(const Instruction& instruction);
  void check_add(const Instruction& instruction);
  void check_sketch(const Instruction& instruction);
  void check_squares(const Instruction& instruction);
  void check_decide(const Instruction& instruction);
  void check_prepare(const Instruction& instruction);
  void check_exchange(const Instruction& instruction);
  // Whether it ends an update: all units of the rank have moved. `others`: what it changes beside.
  bool check_step(const Instruction& instruction, const RankLives::Counts& others);
  void check_end() const;
  void require_group(const Instruction& instruction, const comm::RankGroup& group) const;

 private:
  static constexpr ValueId kNone = -1;

  // What the rank holds of a unit.
  struct Holding {
    bool is_own = false;  // the rank works at a layer of it
    ValueId master = kNone, compute = kNone, sum = kNone, state = kNone;
    std::map<int32_t, ValueId> shares;  // by layer
    std::vector<int32_t> ranks;         // of this pipeline, that work at layers of it
    int32_t steps = 0;                  // that have moved it
    bool is_partial = false;            // what other replicas have moved is still to come
  };
  // What is in a gradient sum, a share or a bucket.
  struct Parts {
    std::vector<uint8_t> has;    // by layer of the unit and micro-batch
    std::vector<uint8_t> begun;  // by layer of the unit: was set in this update
    int32_t update = -1;         // that the parts are of
    int32_t layer = -1;          // of a bucket: whose backward fills it
    bool is_reduced = false;     // over the replicas
    bool is_exchanged = false;   // over the stages that have the unit
    bool is_done = false;        // of a bucket: was reduced; of a share: was added
  };

  // What was done for the update at hand, beside its gradients.
  struct UpdateWork {
    bool is_sketched = false, is_prepared = false, is_averaged = false;
    ValueId filled = kNone, prepared = kNone, lengths = kNone, all_lengths = kNone;
    std::set<ValueId> changed;   // by what was prepared, and so by its exchange
    std::set<ValueId> gathered;  // sums of this replica
  };

  const Unit& unit(int32_t number) const { return program_.units[static_cast<size_t>(number)]; }
  Holding& holding(int32_t number) { return holdings_[static_cast<size_t>(number)]; }
  const Holding& holding(int32_t number) const { return holdings_[static_cast<size_t>(number)]; }
  const std::vector<int32_t>& units_of(int32_t layer) const {
    return units_of_[static_cast<size_t>(layer)];
  }
  bool works_at(int32_t layer) const { return works_at_[static_cast<size_t>(layer)] != 0; }
  void find_holdings();
  void check_forms(int32_t number) const;
  void check_frozen(int32_t number) const;
  void check_copy(const Holding& held) const;
  void find_ranks();
  bool is_sharded(int32_t number) const;  // each replica moves slices of it
  bool meets_replicas() const;
  bool moves(int32_t number) const { return holding(number).is_own && !unit(number).is_frozen; }
  int32_t only_unit(const Instruction& instruction) const;
  void refuse_frozen(int32_t number) const;
  std::vector<ValueId> visible_weights(int32_t number) const;
  void require_read(const Instruction& instruction, ValueId id) const;
  void require_change(const Instruction& instruction, ValueId id, bool sets) const;
  size_t check_weights(const Instruction& instruction, int32_t number, bool reads_copy) const;
  // unit_check_gradients.cpp
  Parts& parts(ValueId id);
  size_t part_index(int32_t number, int32_t layer, int32_t micro_batch) const;
  ValueId target_of(int32_t number, int32_t layer) const;
  void add_work(const Instruction& instruction, int32_t number, int32_t layer, ValueId target);
  void require_local_parts(ValueId id, int32_t number, int32_t layer);
  void require_complete(int32_t number);
  // unit_check_collectives.cpp
  void reduce_over_replicas(const Instruction& instruction, int32_t number);
  void reduce_bucket(const Instruction& instruction, int32_t number);
  void reduce_over_stages(const Instruction& instruction, int32_t number);
  // unit_check_update.cpp
  template <typename Use>
  size_t for_own_units(const Use& use);  // how many there are
  ValueId find_of_update(const std::vector<ValueId>& list, ValueKind kind) const;
  void require_replicas() const;
  void require_unmoved(const Holding& held) const;
  void gather_of_no_unit(const Instruction& instruction);
  void gather_state(const Instruction& instruction);
  ValueKind averaged_kind(const Instruction& instruction) const;
  void check_exchanged(const Instruction& step, RankLives::Counts& counts) const;
  void move_unit(const Instruction& instruction, int32_t number, RankLives::Counts& counts);

  const RankLives& lives_;
  const Program& program_;
  std::vector<std::vector<int32_t>> units_of_;  // by layer, then the loss
  std::vector<uint8_t> works_at_;               // likewise: whether the rank has the layer
  std::vector<Holding> holdings_;               // by unit
  std::vector<Parts> parts_;                    // by value
  std::vector<int32_t> gathered_after_;         // by value: steps of the unit before its gather
  std::vector<ValueId> rank_state_;
  int32_t update_ = 0;  // that gradients are of
  UpdateWork work_;
  bool has_own_gradients_ = false;  // which replicas sketch, and do not reduce
};

}  // namespace penstock::program
