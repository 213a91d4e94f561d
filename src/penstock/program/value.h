// What a rank of a program holds: activations of a micro-batch, weights, gradients and state of a
// unit, and memory that never moves. docs/program.md lists the kinds and their names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace penstock::program {

// Each field of a value has one meaning; kInfo (below) says which kinds have which.
enum class ValueKind : uint8_t {
  // Of a layer and a micro-batch.
  Activation,  // x: what enters layer `layer`; layer == number of layers: what enters the loss
  Saved,       // s: what forward of `layer` keeps for its backward, beside its input and output
  Gradient,    // d: the gradient of activation `layer`
  Targets,     // t: what the loss compares with
  WeightWork,  // w: what the weight gradient of `layer` still needs
  // Of an element of the edges that more than the next layer reads, and a micro-batch.
  Carried,          // i: the element, from the layer that makes it to the last that reads it
  CarriedGradient,  // u: its gradient, added up over the layers that read it
  // Of a unit, while a micro-batch needs it.
  Gathered,  // p: its whole weights as layers see them
  Bucket,    // g: its whole gradient, of this micro-batch alone
  // Of all units of the rank.
  Stashed,  // v: what layers see of the weights, copied after `version` updates
  // Of a unit, from step to step.
  Master,       // m: the float32 weights that the optimizer moves
  Compute,      // c: what layers see of them in another precision, or whole where m is sharded
  GradientSum,  // a: the gradient, added up
  Share,        // b: the part of the gradient that `layer` adds, of a unit that layers share
  State,        // o: the optimizer's state; its slices are what the rank's Step moves
  // Of a layer, from step to step.
  LayerState,  // A: what it changes beside gradients, as the update began and as forwards leave it
  // Of the rank, from step to step. `label` says what it is.
  RankState,  // e: state of the optimizer that belongs to no unit
  Fixed,      // k: workspaces, staging: never read, never moved
  // Of one update, numbered by `version`. They hold a few numbers, outside of what is counted.
  Squares,      // q: sums of squares of this rank's gradients
  AllSquares,   // z: those of all ranks
  Decision,     // n: norm of the gradients, what they are multiplied by, whether all are finite
  Sketches,     // h: sums that tell the norm, of this replica's own gradients
  AllSketches,  // j: those of all replicas
  Filled,       // f: the optimizer has what it needs of its replicas' state
  Prepared,     // r: what this replica gives to the average of all
  Lengths,      // l: sums of squares of this rank's slices of weights and updates
  AllLengths,   // y: those of all replicas
};
inline constexpr size_t kNumValueKinds = static_cast<size_t>(ValueKind::AllLengths) + 1;

// Where a value lives.
enum class Tier : uint8_t { Device, Host, Disk };
inline constexpr size_t kNumTiers = 3;
inline constexpr std::array kTiers = {Tier::Device, Tier::Host, Tier::Disk};
std::string_view tier_name(Tier tier);  // "device"

// Elements first .. end - 1 of a unit.
struct Slice {
  int64_t first = 0, end = 0;

  int64_t count() const { return end - first; }
  bool operator==(const Slice&) const = default;
};

struct Value {
  ValueKind kind = ValueKind::Activation;
  Tier tier = Tier::Device;
  int32_t layer = -1;
  int32_t element = -1;  // index into Program::carried
  int32_t unit = -1;
  int32_t micro_batch = -1;
  int32_t version = -1;  // updates before it
  int32_t label = -1;    // index into RankProgram::labels
  int64_t bytes = 0;
  // Of a unit that is sharded; none: all of it. A rank that has nothing of it has an empty one, 0-0.
  std::vector<Slice> slices = {};

  bool operator==(const Value&) const = default;
};

// Which fields a kind has; the others are -1.
struct ValueKindInfo {
  char letter;
  bool has_layer, has_element, has_unit, has_micro_batch, has_version, has_label;
  bool is_persistent;  // there when a step begins and when it ends
};

inline constexpr std::array<ValueKindInfo, kNumValueKinds> kValueKinds = {{
    // letter layer  element unit   micro  version label  persistent
    {'x', true, false, false, true, false, false, false},   // Activation
    {'s', true, false, false, true, false, false, false},   // Saved
    {'d', true, false, false, true, false, false, false},   // Gradient
    {'t', false, false, false, true, false, false, false},  // Targets
    {'w', true, false, false, true, false, false, false},   // WeightWork
    {'i', false, true, false, true, false, false, false},   // Carried
    {'u', false, true, false, true, false, false, false},   // CarriedGradient
    {'p', false, false, true, true, false, false, false},   // Gathered
    {'g', false, false, true, true, false, false, false},   // Bucket
    {'v', false, false, false, false, true, false, false},  // Stashed
    {'m', false, false, true, false, false, false, true},   // Master
    {'c', false, false, true, false, false, false, true},   // Compute
    {'a', false, false, true, false, false, false, true},   // GradientSum
    {'b', true, false, true, false, false, false, true},    // Share
    {'o', false, false, true, false, false, false, true},   // State
    {'A', true, false, false, false, false, false, true},   // LayerState
    {'e', false, false, false, false, false, true, true},   // RankState
    {'k', false, false, false, false, false, true, true},   // Fixed
    {'q', false, false, false, false, true, false, false},  // Squares
    {'z', false, false, false, false, true, false, false},  // AllSquares
    {'n', false, false, false, false, true, false, false},  // Decision
    {'h', false, false, false, false, true, false, false},  // Sketches
    {'j', false, false, false, false, true, false, false},  // AllSketches
    {'f', false, false, false, false, true, false, false},  // Filled
    {'r', false, false, false, false, true, false, false},  // Prepared
    {'l', false, false, false, false, true, false, false},  // Lengths
    {'y', false, false, false, false, true, false, false},  // AllLengths
}};

constexpr const ValueKindInfo& info_of(ValueKind kind) {
  return kValueKinds[static_cast<size_t>(kind)];
}

// Of a layer, or of an element of the edges, and a micro-batch.
inline Value layer_value(ValueKind kind, int32_t place, int32_t micro_batch, int64_t bytes) {
  return {.kind = kind,
          .layer = info_of(kind).has_layer ? place : -1,
          .element = info_of(kind).has_element ? place : -1,
          .micro_batch = micro_batch,
          .bytes = bytes};
}

}  // namespace penstock::program
