// What a rank does, one thing after the other.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "penstock/program/value.h"

namespace penstock::program {

enum class Op : uint8_t {
  Forward,   // x(layer), and what it reads of carried elements -> x(layer + 1), the elements that
             // it makes, and s(layer) unless keep is kKeepNothing; one that is
             // recomputed right before its backward may make s(layer) alone
  Loss,      // x(last), t -> d(last); adds to the gradients of the head. Of an evaluation: the
             // loss alone, without a gradient
  Backward,  // x(layer), s(layer), d(layer + 1) -> d(layer); layer 0 makes none
  BackwardInput,   // the input gradient: likewise, and makes w(layer) beside d(layer)
  BackwardWeight,  // the weight gradient: w(layer) ->; adds to the layer's gradients
  Send,            // reads a value and gives it to a peer; what frees the value waits for the peer
  Receive,         // makes the value that a peer sends
  Drop,            // frees values, does nothing else
  Stash,           // copies what layers see of the weights
  Gather,          // every rank of a group gets what the others have: of a unit, of the optimizer's
                   // state, or sums
  Reduce,          // adds the gradients of a unit over the ranks of a group
  Add,             // adds the shares of a unit's gradient that are on this rank
  Sketch,          // sums that tell the norm of the replicas' mean gradient, which nobody has
  Squares,         // sums of squares of the rank's gradients, or of what sketches tell of them
  Decide,          // from all squares to the norm, and what the gradients are multiplied by
  Prepare,         // the optimizer makes ready what replicas exchange before it moves units
  Exchange,        // replicas average what they have made ready, compressed
  Merge,           // what the layers of replicas have changed of their state becomes one
  Step,            // the optimizer moves units
};
inline constexpr size_t kNumOps = static_cast<size_t>(Op::Step) + 1;  // Step stays the last

// A table with a row for each op, in the order of the enumeration.
template <typename Row>
using OpTable = std::array<Row, kNumOps>;
template <typename Row>
constexpr const Row& row_of(const OpTable<Row>& table, Op op) {
  return table[static_cast<size_t>(op)];
}

template <typename Row>
struct OpRow {
  Op op;
  Row row;
};
// Makes one, and does not compile where an op has no row, or another's.
template <typename Row, size_t N>
consteval OpTable<Row> op_table(const OpRow<Row> (&rows)[N]) {
  static_assert(N == kNumOps, "an op without a row, or a row too many");
  OpTable<Row> table = {};
  for (size_t i = 0; i < N; ++i) {
    if (rows[i].op != static_cast<Op>(i)) {
      throw "rows that are not in the order of the ops";
    }
    table[i] = rows[i].row;
  }
  return table;
}

// A link is what goes out to a peer, an inlet what comes in from one: a line carries both at once.
// Line: what a group of ranks shares, for gathers and reduces that run while the ranks compute.
enum class ResourceKind : uint8_t { Compute, HostCompute, Copy, Disk, Link, Inlet, Line };
inline constexpr size_t kNumResourceKinds = static_cast<size_t>(ResourceKind::Line) + 1;

// What an instruction occupies while it runs. Instructions of one resource run one after the other,
// in the order of the list; those of different resources overlap as far as their values allow.
struct Resource {
  ResourceKind kind = ResourceKind::Compute;
  int32_t index = 0;  // Copy: the engine; Disk: the queue; Link, Inlet: the peer; Line: the group

  auto operator<=>(const Resource&) const = default;
};

inline constexpr int32_t kKeepNothing = -1;
inline constexpr int32_t kNoGroup = -1;

using ValueId = int32_t;  // index into RankProgram::values

struct Instruction {
  Op op = Op::Drop;
  int32_t layer = -1;           // of a forward or backward, of what is sent, of an added share
  int32_t element = -1;         // of what is sent, where it is carried: index into Program::carried
  std::vector<int32_t> units;   // of a gather, reduce or step
  int32_t micro_batch = -1;     // of the work, or of what is sent, gathered or reduced
  int32_t keep = kKeepNothing;  // Forward: index into the layer's save modes
  int32_t group = kNoGroup;     // of a collective: index into Program::groups
  bool scatters = false;        // Reduce: each rank gets the sum of its slices alone
  // `makes`: what is there when it has ended. `sets` and `updates` change what is there already:
  // the former do not look at what it was. `frees` happen when the instruction has ended.
  std::vector<ValueId> reads, makes, sets, updates, frees;
  Resource resource = {};
  double seconds = 0;         // Receive: 0, it takes what the Send takes
  int64_t working_bytes = 0;  // the most held while it runs, above what was live before it
  int64_t sent_bytes = 0;     // of a send or a collective: what it hands to other ranks

  bool operator==(const Instruction&) const = default;
};

// Whose time an instruction takes: a collective at which a rank stands still is no computing.
inline Resource busy_resource(const Instruction& instruction) {
  return instruction.group == kNoGroup ? instruction.resource
                                       : Resource{ResourceKind::Line, instruction.group};
}

std::string_view op_name(Op op);  // "forward"
bool is_transfer(Op op);          // a send or a receive
bool is_collective(Op op);        // a gather, a reduce, an exchange or a merge
bool is_at_layer(Op op);          // work at a layer or the loss
bool contributes(Op op);          // adds to gradients

}  // namespace penstock::program
