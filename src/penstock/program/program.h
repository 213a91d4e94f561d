// The training step, spelled out: one instruction list per rank. Planners write it; verify,
// simulate, the executor and the painter read it. Ranks begin a step together, and none begins its
// optimizer's step before all have reached theirs. The program of an asynchronous pipeline has several
// updates of the weights, each rank's when it comes to it. docs/program.md gives the meaning of every
// field.
//
// Nothing here knows a tensor. A value is made once, by one instruction (or given at the start), and
// freed once; a recomputed activation is a new value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::program {

enum class ValueKind {
  Activation,  // x: what enters layer `layer`; layer == number of layers: what enters the loss
  Saved,       // s: what forward of `layer` keeps for its backward, beside its input and output
  Gradient,    // d: the gradient of activation `layer`
  Targets,     // t: what the loss compares with; `layer` is the number of layers
  WeightWork,  // w: what the weight half of the backward of `layer` still needs
  Weights,     // v: the rank's weights after `micro_batch` updates; `layer` is the number of layers
};

struct Value {
  ValueKind kind = ValueKind::Activation;
  int32_t layer = 0;
  int32_t micro_batch = 0;
  int64_t bytes = 0;

  bool operator==(const Value&) const = default;
};

using ValueId = int32_t;  // index into RankProgram::values

enum class Op {
  Clear,     // parameter gradients become zero
  Forward,   // x(layer) -> x(layer + 1), and s(layer) unless keep is kKeepNothing; one that is run
             // again right before its backward may make s(layer) alone
  Loss,      // x(last), t -> d(last); adds the head's parameter gradients
  Backward,  // x(layer), s(layer), d(layer + 1) -> d(layer); layer 0 makes none
  BackwardInput,   // its first half: likewise, and makes w(layer) beside d(layer)
  BackwardWeight,  // its second half: w(layer) ->; adds the layer's parameter gradients
  Send,            // reads a value and gives it to a peer; what frees the value waits for the peer
  Receive,         // makes the value that a peer sends
  Drop,            // frees values, does nothing else
  Step,            // the optimizer moves the weights
  Stash,           // copies the weights as they are: forward, loss and backward that read the copy
                   // work with it, others with the newest weights
};

// A link is what goes out to a peer, an inlet what comes in from one: a line carries both at once.
enum class ResourceKind { Compute, Copy, Link, Inlet };

// What an instruction occupies while it runs. Instructions of one resource run one after the other,
// in the order of the list; those of different resources overlap as far as their values allow.
struct Resource {
  ResourceKind kind = ResourceKind::Compute;
  int32_t index = 0;  // Copy: the engine; Link, Inlet: the peer's rank

  auto operator<=>(const Resource&) const = default;
};

inline constexpr int32_t kKeepNothing = -1;

struct Instruction {
  Op op = Op::Drop;
  int32_t layer = -1;                        // of a forward or backward; of what is sent
  int32_t micro_batch = -1;                  // likewise, and of a loss
  int32_t keep = kKeepNothing;               // Forward: index into the layer's ways of keeping
  std::vector<ValueId> reads, makes, frees;  // frees happen when the instruction has ended
  Resource resource = {};
  double seconds = 0;         // Receive: 0, it takes what the Send takes
  int64_t working_bytes = 0;  // the most held while it runs, above what was live before it

  bool operator==(const Instruction&) const = default;
};

// One way in which a layer's forward can keep what its backward needs.
struct Way {
  std::string name;
  bool needs_output = false;  // backward needs the layer's output alive too

  bool operator==(const Way&) const = default;
};

struct LayerInfo {
  std::string name;
  std::vector<Way> ways;

  bool operator==(const LayerInfo&) const = default;
};

// Held during the whole step: parameters, their gradients, optimizer state.
struct Resident {
  std::string name;
  int64_t bytes = 0;

  bool operator==(const Resident&) const = default;
};

int64_t bytes_of(const std::vector<Resident>& residents);

struct RankProgram {
  int64_t limit_bytes = 0;  // 0: none
  std::vector<Resident> residents;
  std::vector<Value> values;
  std::vector<ValueId> given;  // live when the step begins: inputs and targets
  std::vector<Instruction> instructions;

  int64_t resident_bytes() const;
  int64_t bytes_of(const std::vector<ValueId>& ids) const;
  bool operator==(const RankProgram&) const = default;
};

struct Program {
  std::vector<LayerInfo> layers;
  int32_t micro_batches = 1;   // of all updates
  int32_t updates = 1;         // steps; each takes the gradients of as many micro-batches, in order
  bool mixes_weights = false;  // a backward may work with other weights than its forward
  std::vector<RankProgram> ranks;

  int32_t loss_index() const { return static_cast<int32_t>(layers.size()); }
  int32_t update_of(int32_t micro_batch) const { return micro_batch / (micro_batches / updates); }
  bool operator==(const Program&) const = default;
};

// Up to 64 letters, digits, _ and -, but neither "-" nor "nothing".
bool is_way_name(std::string_view name);

std::string_view op_name(Op op);  // "forward"
bool is_transfer(Op op);          // a send or a receive

// The values of one kind and layer that go from one rank to another are a channel: they are sent and
// received in the same order.
struct Channel {
  int32_t from = 0, to = 0;
  ValueKind kind = ValueKind::Activation;
  int32_t layer = 0;

  auto operator<=>(const Channel&) const = default;
};
// Of a Send or Receive in the list of rank `rank`.
Channel channel_of(const RankProgram& program, int32_t rank, const Instruction& instruction);

// "x3.0", "s3.0", "d3.0", "w3.0", "t.0" (layer and micro-batch), "v.2" (updates); what is made again
// is "x3.0#2".
std::vector<std::string> value_names(const RankProgram& rank);

// "forward of block 0 mlp, micro-batch 1", for people.
std::string describe(const Program& program, const Instruction& instruction);

}  // namespace penstock::program
