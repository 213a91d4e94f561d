#include "penstock/program/program.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "penstock/base/error.h"

namespace penstock::program {

namespace {

struct OpTraits {
  std::string_view name;
  bool is_transfer = false, is_collective = false, is_at_layer = false, contributes = false;
};

constexpr OpTable<OpTraits> kTraits = op_table<OpTraits>({
    {Op::Forward, {.name = "forward", .is_at_layer = true}},
    {Op::Loss, {.name = "loss", .is_at_layer = true, .contributes = true}},
    {Op::Backward, {.name = "backward", .is_at_layer = true, .contributes = true}},
    {Op::BackwardInput, {.name = "backward-input", .is_at_layer = true}},
    {Op::BackwardWeight, {.name = "backward-weight", .is_at_layer = true, .contributes = true}},
    {Op::Send, {.name = "send", .is_transfer = true}},
    {Op::Receive, {.name = "receive", .is_transfer = true}},
    {Op::Drop, {.name = "drop"}},
    {Op::Stash, {.name = "stash"}},
    {Op::Gather, {.name = "gather", .is_collective = true}},
    {Op::Reduce, {.name = "reduce", .is_collective = true}},
    {Op::Add, {.name = "add"}},
    {Op::Sketch, {.name = "sketch"}},
    {Op::Squares, {.name = "squares"}},
    {Op::Decide, {.name = "decide"}},
    {Op::Prepare, {.name = "prepare"}},
    {Op::Exchange, {.name = "exchange", .is_collective = true}},
    {Op::Merge, {.name = "merge", .is_collective = true}},
    {Op::Step, {.name = "step"}},
});

// What a persistent value is for people; those of a label have that.
std::string_view held_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::Master:
      return "weights";
    case ValueKind::Compute:
      return "compute copy";
    case ValueKind::GradientSum:
      return "gradients";
    case ValueKind::Share:
      return "gradients of shared weights";
    case ValueKind::State:
      return "optimizer state";
    case ValueKind::LayerState:
      return "state of layers";
    default:
      return "";
  }
}

bool has(const std::vector<int32_t>& sorted, int32_t one) {
  return std::binary_search(sorted.begin(), sorted.end(), one);
}

}  // namespace

std::string_view tier_name(Tier tier) {
  constexpr std::array<std::string_view, kNumTiers> names = {"device", "host", "disk"};
  return names[static_cast<size_t>(tier)];
}

std::string_view op_name(Op op) {
  // verify() refuses what is none.
  return static_cast<size_t>(op) < kNumOps ? row_of(kTraits, op).name : "unknown operation";
}

bool is_transfer(Op op) {
  return row_of(kTraits, op).is_transfer;
}

bool is_collective(Op op) {
  return row_of(kTraits, op).is_collective;
}

bool is_at_layer(Op op) {
  return row_of(kTraits, op).is_at_layer;
}

bool contributes(Op op) {
  return row_of(kTraits, op).contributes;
}

bool Unit::is_needed_for(Op op, int32_t layer) const {
  switch (op) {
    case Op::Forward:
    case Op::Loss:
      return true;
    case Op::Backward:
    case Op::BackwardInput:
      return !has(forward_only, layer);
    case Op::BackwardWeight:
      return has(weight_too, layer);
    default:
      return false;
  }
}

bool Unit::has_layer(int32_t layer) const {
  return has(layers, layer);
}

int64_t RankProgram::limit_of(Tier tier) const {
  switch (tier) {
    case Tier::Device:
      return limit_bytes;
    case Tier::Host:
      return host_limit_bytes;
    case Tier::Disk:
      return disk_limit_bytes;
  }
  throw InternalError("no such tier");
}

int64_t RankProgram::bytes_of(const std::vector<ValueId>& ids, Tier tier) const {
  int64_t sum = 0;
  for (const ValueId id : ids) {
    sum += value(id).tier == tier ? value(id).bytes : 0;
  }
  return sum;
}

int64_t RankProgram::sent_bytes() const {
  int64_t sum = 0;
  for (const Instruction& instruction : instructions) {
    sum += instruction.sent_bytes;
  }
  return sum;
}

ValueId RankProgram::hold(Value value, const std::string& label) {
  PENSTOCK_CHECK(info_of(value.kind).is_persistent, "a value that does not last is to be held");
  if (info_of(value.kind).has_label) {
    value.label = static_cast<int32_t>(labels.size());
    labels.push_back(label);
  }
  persistent.push_back(static_cast<ValueId>(values.size()));
  values.push_back(std::move(value));
  return persistent.back();
}

void renumber_values(RankProgram& rank) {
  std::vector<ValueId> number(rank.values.size(), -1);
  std::vector<Value> values;
  values.reserve(rank.values.size());
  const auto take = [&](const std::vector<ValueId>& ids) {
    for (const ValueId id : ids) {
      number[static_cast<size_t>(id)] = static_cast<ValueId>(values.size());
      values.push_back(std::move(rank.values[static_cast<size_t>(id)]));
    }
  };
  take(rank.persistent);
  take(rank.given);
  for (const Instruction& instruction : rank.instructions) {
    take(instruction.makes);
  }
  const auto rename = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) {
      id = number[static_cast<size_t>(id)];
    }
  };
  rename(rank.persistent);
  rename(rank.given);
  for (Instruction& instruction : rank.instructions) {
    for (auto list : {&Instruction::reads,
                      &Instruction::makes,
                      &Instruction::sets,
                      &Instruction::updates,
                      &Instruction::frees}) {
      rename(instruction.*list);
    }
  }
  rank.values = std::move(values);
}

std::vector<Tier> tiers_of(const RankProgram& rank) {
  std::vector<Tier> tiers{Tier::Device};
  for (const Tier tier : {Tier::Host, Tier::Disk}) {
    const auto is_there = [&](const Value& value) { return value.tier == tier; };
    if (std::any_of(rank.values.begin(), rank.values.end(), is_there)) {
      tiers.push_back(tier);
    }
  }
  return tiers;
}

std::vector<Held> held_by_name(const RankProgram& rank, Tier tier) {
  std::vector<Held> all;
  for (const ValueId id : rank.persistent) {
    const Value& value = rank.value(id);
    if (value.tier != tier) {
      continue;
    }
    const std::string name = info_of(value.kind).has_label
                                 ? rank.labels[static_cast<size_t>(value.label)]
                                 : std::string(held_name(value.kind));
    const auto same =
        std::find_if(all.begin(), all.end(), [&](const Held& one) { return one.name == name; });
    if (same == all.end()) {
      all.push_back({name, value.bytes});
    } else {
      same->bytes += value.bytes;
    }
  }
  return all;
}

int32_t Program::add_group(const comm::RankGroup& group) {
  const auto known = std::find(groups.begin(), groups.end(), group);
  const auto index = static_cast<int32_t>(known - groups.begin());
  if (known == groups.end()) {
    groups.push_back(group);
  }
  return index;
}

std::vector<std::vector<int32_t>> units_by_layer(const std::vector<Unit>& units,
                                                 int32_t loss_index) {
  std::vector<std::vector<int32_t>> units_of(static_cast<size_t>(loss_index) + 1);
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (const int32_t layer : units[unit].layers) {
      units_of.at(static_cast<size_t>(layer)).push_back(static_cast<int32_t>(unit));
    }
  }
  return units_of;
}

std::vector<CarriedAt> carried_by_layer(const std::vector<Carried>& carried, int32_t loss_index) {
  std::vector<CarriedAt> all(static_cast<size_t>(loss_index) + 1);
  for (size_t i = 0; i < carried.size(); ++i) {
    const auto element = static_cast<int32_t>(i);
    for (const int32_t reader : carried[i].readers) {
      all.at(static_cast<size_t>(reader)).reads.push_back(element);
    }
    if (carried[i].born >= 0) {
      all.at(static_cast<size_t>(carried[i].born)).makes.push_back(element);
    }
  }
  return all;
}

bool is_mode_name(std::string_view name) {
  const auto is_allowed = [](unsigned char letter) {
    return letter < 0x80 && (std::isalnum(letter) != 0 || letter == '_' || letter == '-');
  };
  // The text form writes "-" for an empty list and "nothing" for no mode.
  return !name.empty() && name.size() <= 64 && name != "-" && name != "nothing" &&
         std::all_of(name.begin(), name.end(), is_allowed);
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

std::string name_of(const Value& value) {
  const ValueKindInfo& info = info_of(value.kind);
  std::string name(1, info.letter);
  if (info.has_unit) {
    name += std::to_string(value.unit);
  }
  if (info.has_layer) {
    name += cat(info.has_unit ? "." : "", value.layer);
  }
  if (info.has_element) {
    name += std::to_string(value.element);
  }
  if (info.has_label) {
    name += std::to_string(value.label);
  }
  if (info.has_micro_batch) {
    name += cat(".", value.micro_batch);
  }
  if (info.has_version) {
    name += cat(".", value.version);
  }
  return name;
}

std::vector<std::string> value_names(const RankProgram& rank) {
  std::map<std::string, int> times;
  std::vector<std::string> names;
  names.reserve(rank.values.size());
  for (const Value& value : rank.values) {
    std::string name = name_of(value);
    const int count = ++times[name];
    names.push_back(count > 1 ? cat(name, "#", count) : std::move(name));
  }
  return names;
}

Channel channel_of(const RankProgram& program, int32_t rank, const Instruction& instruction) {
  const bool is_send = instruction.op == Op::Send;
  const std::vector<ValueId>& ids = is_send ? instruction.reads : instruction.makes;
  PENSTOCK_CHECK(ids.size() == 1, "a send or receive of ", ids.size(), " values");
  const Value& value = program.value(ids[0]);
  const int32_t peer = instruction.resource.index;
  return {is_send ? rank : peer, is_send ? peer : rank, value.kind, value.layer, value.element};
}

namespace {

// Of what belongs to no unit. All ranks need each other's squares, replicas the rest.
std::string_view gathered_name(const Program& program, const Instruction& instruction) {
  const auto group = static_cast<size_t>(instruction.group);
  const bool is_of_replicas =
      group < program.groups.size() && !program.groups[group].axes.contains(comm::Axis::Pipeline);
  return !instruction.updates.empty() ? " of the state"
         : is_of_replicas             ? " of sums"
                                      : " of the squares";
}

}  // namespace

std::string describe(const Program& program, const Instruction& instruction) {
  std::string text(op_name(instruction.op));
  const auto layer = static_cast<size_t>(instruction.layer);  // of none: beyond all
  if (layer < program.layers.size()) {
    text += cat(" of ", program.layers[layer].name);
  }
  if (const auto element = static_cast<size_t>(instruction.element);
      element < program.carried.size()) {
    text += cat(" of ", program.carried[element].name);
  }
  const size_t units = instruction.units.size();
  if (units == 1 && static_cast<size_t>(instruction.units[0]) < program.units.size()) {
    text += cat(" of ", program.units[static_cast<size_t>(instruction.units[0])].name);
  } else if (units > 1) {
    text += cat(" of ", units, " units");
  }
  if (instruction.op == Op::Gather && units == 0) {
    text += gathered_name(program, instruction);
  }
  if (instruction.micro_batch >= 0) {
    text += cat(", micro-batch ", instruction.micro_batch);
  }
  if (is_transfer(instruction.op)) {
    text +=
        cat(instruction.op == Op::Send ? ", to" : ", from", " rank ", instruction.resource.index);
  }
  const auto group = static_cast<size_t>(instruction.group);
  if (is_collective(instruction.op) && group < program.groups.size()) {
    text += cat(", over ", program.groups[group].name);
  }
  return text;
}

}  // namespace penstock::program
