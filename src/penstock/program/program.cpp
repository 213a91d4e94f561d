#include "penstock/program/program.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <tuple>

#include "penstock/base/error.h"

namespace penstock::program {

namespace {

char letter_of(ValueKind kind) {
  switch (kind) {
    case ValueKind::Activation:
      return 'x';
    case ValueKind::Saved:
      return 's';
    case ValueKind::Gradient:
      return 'd';
    case ValueKind::Targets:
      return 't';
    case ValueKind::WeightWork:
      return 'w';
    case ValueKind::Weights:
      return 'v';
    case ValueKind::Gathered:
      return 'p';
    case ValueKind::Bucket:
      return 'g';
    case ValueKind::Reduced:
      return 'r';
  }
  throw InternalError("no such kind of value");
}

}  // namespace

int64_t bytes_of(const std::vector<Resident>& residents) {
  int64_t sum = 0;
  for (const Resident& resident : residents) {
    sum += resident.bytes;
  }
  return sum;
}

int64_t RankProgram::resident_bytes() const {
  return program::bytes_of(residents);
}

int64_t RankProgram::bytes_of(const std::vector<ValueId>& ids) const {
  int64_t sum = 0;
  for (const ValueId id : ids) {
    sum += values[static_cast<size_t>(id)].bytes;
  }
  return sum;
}

bool is_way_name(std::string_view name) {
  const auto is_allowed = [](unsigned char letter) {
    return letter < 0x80 && (std::isalnum(letter) != 0 || letter == '_' || letter == '-');
  };
  // The text form writes "-" for an empty list and "nothing" for no way.
  return !name.empty() && name.size() <= 64 && name != "-" && name != "nothing" &&
         std::all_of(name.begin(), name.end(), is_allowed);
}

std::string_view op_name(Op op) {
  switch (op) {
    case Op::Clear:
      return "clear";
    case Op::Forward:
      return "forward";
    case Op::Loss:
      return "loss";
    case Op::Backward:
      return "backward";
    case Op::BackwardInput:
      return "backward-input";
    case Op::BackwardWeight:
      return "backward-weight";
    case Op::Send:
      return "send";
    case Op::Receive:
      return "receive";
    case Op::Drop:
      return "drop";
    case Op::Step:
      return "step";
    case Op::Stash:
      return "stash";
    case Op::Gather:
      return "gather";
    case Op::Reduce:
      return "reduce";
  }
  return "unknown operation";  // verify() refuses it
}

bool is_transfer(Op op) {
  return op == Op::Send || op == Op::Receive;
}

bool is_collective(Op op) {
  return op == Op::Gather || op == Op::Reduce;
}

bool is_of_a_unit(ValueKind kind) {
  return kind == ValueKind::Gathered || kind == ValueKind::Bucket || kind == ValueKind::Reduced;
}

bool Unit::is_needed_for(Op op, int32_t layer) const {
  switch (op) {
    case Op::Forward:
    case Op::Loss:
      return true;
    case Op::Backward:
    case Op::BackwardInput:
      return !std::binary_search(forward_only.begin(), forward_only.end(), layer);
    default:
      return false;
  }
}

std::string_view shard_name(Shard shard) {
  switch (shard) {
    case Shard::None:
      return "none";
    case Shard::Optimizer:
      return "optimizer";
    case Shard::Gradients:
      return "gradients";
    case Shard::Parameters:
      return "parameters";
  }
  throw InternalError("no such sharding");
}

std::vector<std::string> value_names(const RankProgram& rank) {
  std::map<std::tuple<ValueKind, int32_t, int32_t>, int> times;
  std::vector<std::string> names;
  names.reserve(rank.values.size());
  for (const Value& value : rank.values) {
    const int count = ++times[{value.kind, value.layer, value.micro_batch}];
    const std::string again = count > 1 ? cat("#", count) : "";
    const bool has_layer = value.kind != ValueKind::Targets && value.kind != ValueKind::Weights;
    names.push_back(cat(letter_of(value.kind),
                        has_layer ? std::to_string(value.layer) : "",
                        ".",
                        value.micro_batch,
                        again));
  }
  return names;
}

Channel channel_of(const RankProgram& program, int32_t rank, const Instruction& instruction) {
  const bool is_send = instruction.op == Op::Send;
  const std::vector<ValueId>& ids = is_send ? instruction.reads : instruction.makes;
  PENSTOCK_CHECK(ids.size() == 1, "a send or receive of ", ids.size(), " values");
  const Value& value = program.values[static_cast<size_t>(ids[0])];
  const int32_t peer = instruction.resource.index;
  return {is_send ? rank : peer, is_send ? peer : rank, value.kind, value.layer};
}

std::string describe(const Program& program, const Instruction& instruction) {
  std::string text(op_name(instruction.op));
  const auto index = static_cast<size_t>(instruction.layer);  // of none: beyond all
  if (is_collective(instruction.op)) {
    text += index < program.units.size() ? cat(" of ", program.units[index].name) : "";
  } else if (index < program.layers.size()) {
    text += cat(" of ", program.layers[index].name);
  }
  if (instruction.micro_batch >= 0) {
    text += cat(", micro-batch ", instruction.micro_batch);
  }
  if (is_transfer(instruction.op)) {
    text +=
        cat(instruction.op == Op::Send ? ", to" : ", from", " rank ", instruction.resource.index);
  }
  return text;
}

}  // namespace penstock::program
