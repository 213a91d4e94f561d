// The training step, spelled out: one instruction list per rank. Planners write it; verify,
// simulate, the executor and the painter read it. Ranks begin a step together. The program of an
// asynchronous pipeline has several updates of the weights, each rank's when it comes to it. An
// evaluation has none: it goes forward to the loss, and leaves all that is held as it is.
// docs/program.md gives the meaning of every field.
//
// Nothing here knows a tensor. Every byte that a rank holds is a value. Some are there from step to
// step, and instructions change them in place: weights, gradients, state. The others are given at
// the start, or made once by one instruction, and freed once; a recomputed activation is a new one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/comm/mesh.h"
#include "penstock/program/instruction.h"
#include "penstock/program/value.h"

namespace penstock::program {

// One choice of what a layer's forward keeps for its backward.
struct SaveMode {
  std::string name;
  bool needs_output = false;  // backward needs the layer's output alive too

  bool operator==(const SaveMode&) const = default;
};

struct LayerInfo {
  std::string name;
  std::vector<SaveMode> modes;

  bool operator==(const LayerInfo&) const = default;
};

// What replicas divide among themselves. A gradient sum that is not sharded is there whole.
enum class Shard : uint8_t { None, Optimizer, Gradients, Parameters };
inline constexpr std::array kShards = {
    Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Parameters};

std::string_view shard_name(Shard shard);  // "none", "optimizer", "gradients", "parameters"

// An element of the chain's edges that other layers than the next read, or several: a mask, an
// encoder's output. It passes by the layers in between unchanged, and is one value wherever it is.
// What one layer makes for the next alone is part of the activation between them.
struct Carried {
  std::string name;
  int32_t born = -1;             // the layer that makes it; -1: the batch brings it
  std::vector<int32_t> readers;  // ascending; loss_index(): the loss
  bool has_gradient = false;

  // The reader whose contribution comes before that of `reader`, or of the layer that makes it: the
  // next one up. The last reader's is the first.
  int32_t reader_after(int32_t reader) const {
    return *std::upper_bound(readers.begin(), readers.end(), reader);
  }
  bool operator==(const Carried&) const = default;
};

// What work at a layer, or at the loss, has to do with carried elements. Ascending.
struct CarriedAt {
  std::vector<int32_t> reads, makes;
};
// Of each layer, then of the loss.
std::vector<CarriedAt> carried_by_layer(const std::vector<Carried>& carried, int32_t loss_index);

// Weights that are gathered, reduced and stepped together.
struct Unit {
  std::string name;
  std::vector<int32_t> layers;  // that have parameters in it, ascending; loss_index(): the loss
  std::vector<int32_t> forward_only = {};  // of them, those whose backward needs no weights
  // Of them, those that need them for the weight gradient too, where that is computed apart.
  std::vector<int32_t> weight_too = {};
  bool is_shared = false;  // all of its layers use the same parameters
  // Never moved: work at its layers reads it, and it has neither gradient nor state.
  bool is_frozen = false;
  int64_t elements = 0;  // 0: not known

  // Whether work at a layer of it needs its weights.
  bool is_needed_for(Op op, int32_t layer) const;
  bool has_layer(int32_t layer) const;
  bool operator==(const Unit&) const = default;
};

struct RankProgram {
  int64_t limit_bytes = 0;  // of the device; 0: none
  int64_t host_limit_bytes = 0, disk_limit_bytes = 0;
  std::vector<std::string> labels;  // of values that belong to no layer and no unit
  std::vector<Value> values;
  std::vector<ValueId> persistent;  // there when the step begins, and when it ends
  std::vector<ValueId> given;       // there when it begins: inputs and targets
  std::vector<Instruction> instructions;

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
  int64_t limit_of(Tier tier) const;
  int64_t bytes_of(const std::vector<ValueId>& ids, Tier tier = Tier::Device) const;
  int64_t persistent_bytes(Tier tier = Tier::Device) const { return bytes_of(persistent, tier); }
  int64_t sent_bytes() const;  // in a step
  // A value that is there from step to step; the label is added where it is new.
  ValueId hold(Value value, const std::string& label = "");
  bool operator==(const RankProgram&) const = default;
};

// Numbers values as files do: those that are held, those that are given, then as they are made.
void renumber_values(RankProgram& rank);

std::vector<Tier> tiers_of(const RankProgram& rank);  // that its values are on; the device always

// What a rank holds from step to step, by what it is for people: "weights", "gradients", ....
struct Held {
  std::string name;
  int64_t bytes = 0;

  bool operator==(const Held&) const = default;
};
std::vector<Held> held_by_name(const RankProgram& rank, Tier tier = Tier::Device);

struct Program {
  std::vector<LayerInfo> layers;
  std::vector<Carried> carried;
  int32_t micro_batches = 1;  // of all updates
  int32_t updates =
      1;  // each takes the gradients of as many micro-batches, in order; 0: no gradient
  bool mixes_weights = false;  // a backward may work with other weights than its forward
  // Ranks by their axes. Replicas (the data axis) run the same layers, each with samples of its own.
  comm::Mesh mesh;
  std::vector<comm::RankGroup> groups;  // that gather and reduce
  Shard shard = Shard::None;
  // Each replica moves by its own gradients, and so has weights of its own until replicas meet.
  bool is_apart = false;
  std::vector<Unit> units;  // none: nobody asks for weights, gradients and state
  std::vector<RankProgram> ranks;

  int32_t replicas() const { return mesh.degree(comm::Axis::Data); }
  int32_t stage_of(int32_t rank) const { return mesh.coordinate(rank, comm::Axis::Pipeline); }
  int32_t replica_of(int32_t rank) const { return mesh.coordinate(rank, comm::Axis::Data); }
  // Whether gradient sums are whole and reduced once when all is there; else each micro-batch's
  // gradients go into buckets of their own.
  bool keeps_gradients() const { return shard == Shard::None || shard == Shard::Optimizer; }
  int32_t loss_index() const { return static_cast<int32_t>(layers.size()); }
  // The loss of some samples and nothing else: layers run as they do outside of training.
  bool is_evaluation() const { return updates == 0; }
  int32_t update_of(int32_t micro_batch) const {
    return is_evaluation() ? 0 : micro_batch / (micro_batches / updates);
  }
  int32_t add_group(const comm::RankGroup& group);  // its index; the same group once
  bool operator==(const Program&) const = default;
};

// Of each layer, then of the loss: the units that have parameters of it.
std::vector<std::vector<int32_t>> units_by_layer(const std::vector<Unit>& units,
                                                 int32_t loss_index);

// Up to 64 letters, digits, _ and -, but neither "-" nor "nothing".
bool is_mode_name(std::string_view name);

// The values of one kind, layer and element that go from one rank to another are a channel: they are
// sent and received in the same order.
struct Channel {
  int32_t from = 0, to = 0;
  ValueKind kind = ValueKind::Activation;
  int32_t layer = -1;
  int32_t element = -1;

  auto operator<=>(const Channel&) const = default;
};
// Of a Send or Receive in the list of rank `rank`.
Channel channel_of(const RankProgram& program, int32_t rank, const Instruction& instruction);

// "x3.0" (layer and micro-batch), "i3.0" (element and micro-batch), "p3.0" (unit and micro-batch), "m3" (unit), "b3.7" (unit and
// layer), "v.2" (version), "k0" (label); what is made again is "x3.0#2".
std::string name_of(const Value& value);
std::vector<std::string> value_names(const RankProgram& rank);

// "forward of block 0 mlp, micro-batch 1", for people.
std::string describe(const Program& program, const Instruction& instruction);

}  // namespace penstock::program
