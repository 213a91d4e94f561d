// The training step, spelled out: one instruction list per rank. Planners write it; verify,
// simulate, the executor and the painter read it. Ranks begin a step together, and none begins its
// optimizer's step before all have reached theirs. The program of an asynchronous pipeline has
// several updates of the weights, each rank's when it comes to it. Replicas run the same layers
// with micro-batches of their own, and add up their gradients. docs/program.md gives the meaning of
// every field.
//
// Nothing here knows a tensor. A value is made once, by one instruction (or given at the start),
// and freed once; a recomputed activation is a new value.
#pragma once

#include <array>
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
  Gathered,    // p: the whole weights of a unit; `layer` is the unit, here and below
  Bucket,      // g: the whole gradient of a unit, of one micro-batch
  Reduced,     // r: holds nothing; says that a reduce is done
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
  Gather,          // all replicas of a stage get the whole weights of a unit
  Reduce,          // the gradients of a unit are added over the replicas of a stage. Both are only
                   // started by their instruction; what needs them done waits for all replicas
};

// A link is what goes out to a peer, an inlet what comes in from one: a line carries both at once.
// Replicas: the line to the other replicas of the stage, for gathers and reduces alone.
enum class ResourceKind { Compute, Copy, Link, Inlet, Replicas };

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
  int32_t layer = -1;  // of a forward or backward; of what is sent; the unit of a gather or reduce
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

// What is cut into pieces of which each replica has one. A gradient that is resident is there
// whole.
enum class Shard { None, Optimizer, Gradients, Parameters };
inline constexpr std::array kShards = {
    Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Parameters};

std::string_view shard_name(Shard shard);  // "none", "optimizer", "gradients", "parameters"

// Weights whose gradients are reduced, and which are gathered, at once.
struct Unit {
  std::string name;
  std::vector<int32_t> layers;  // that have parameters in it, ascending; loss_index(): the loss
  std::vector<int32_t> forward_only = {};  // of them, those whose backward needs no weights

  // Whether work at a layer of it needs its weights.
  bool is_needed_for(Op op, int32_t layer) const;
  bool operator==(const Unit&) const = default;
};

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
  int32_t replicas = 1;        // of every stage; each runs all micro-batches, of samples of its own
  Shard shard = Shard::None;
  // The step itself does what replicas need of each other's gradients, which are resident: there
  // are no reduces.
  bool step_reduces = false;
  std::vector<Unit> units;         // none where there is one replica
  std::vector<RankProgram> ranks;  // the replicas of a stage follow each other

  int32_t stage_of(int32_t rank) const { return rank / replicas; }
  int32_t replica_of(int32_t rank) const { return rank % replicas; }
  // Whether gradients are resident, to be reduced once when all are there; else each micro-batch's
  // go into buckets of their own.
  bool keeps_gradients() const { return shard == Shard::None || shard == Shard::Optimizer; }
  int32_t loss_index() const { return static_cast<int32_t>(layers.size()); }
  int32_t update_of(int32_t micro_batch) const { return micro_batch / (micro_batches / updates); }
  bool operator==(const Program&) const = default;
};

// Up to 64 letters, digits, _ and -, but neither "-" nor "nothing".
bool is_way_name(std::string_view name);

std::string_view op_name(Op op);  // "forward"
bool is_transfer(Op op);          // a send or a receive
bool is_collective(Op op);        // a gather or a reduce
bool is_of_a_unit(ValueKind kind);

// The values of one kind and layer that go from one rank to another are a channel: they are sent
// and received in the same order.
struct Channel {
  int32_t from = 0, to = 0;
  ValueKind kind = ValueKind::Activation;
  int32_t layer = 0;

  auto operator<=>(const Channel&) const = default;
};
// Of a Send or Receive in the list of rank `rank`.
Channel channel_of(const RankProgram& program, int32_t rank, const Instruction& instruction);

// "x3.0", "s3.0", "d3.0", "w3.0", "t.0" (layer and micro-batch), "p3.0", "g3.0", "r3.0" (unit and
// micro-batch), "v.2" (updates); what is made again is "x3.0#2".
std::vector<std::string> value_names(const RankProgram& rank);

// "forward of block 0 mlp, micro-batch 1", for people.
std::string describe(const Program& program, const Instruction& instruction);

}  // namespace penstock::program
