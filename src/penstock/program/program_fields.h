// The words that reading and spelling a program share, and which instruction takes which field.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "penstock/program/program.h"
#include "penstock/program/program_reader.h"

namespace penstock::program {

inline constexpr std::string_view kNoLimit = "none";
inline constexpr std::string_view kNoMode = "nothing";
inline constexpr std::string_view kNeedsOutput = "+output";
inline constexpr std::string_view kAll = "all", kScatter = "scatter";

constexpr unsigned bit(Op op) {
  return 1U << static_cast<unsigned>(op);
}

inline constexpr unsigned kSend = bit(Op::Send), kReceive = bit(Op::Receive);
inline constexpr unsigned kTransfer = kSend | kReceive;
inline constexpr unsigned kOfUnits = bit(Op::Gather) | bit(Op::Reduce);
inline constexpr unsigned kCollective = kOfUnits | bit(Op::Exchange) | bit(Op::Merge);
inline constexpr unsigned kLayered =
    bit(Op::Forward) | bit(Op::Backward) | bit(Op::BackwardInput) | bit(Op::BackwardWeight);
inline constexpr unsigned kWorking = kLayered | bit(Op::Loss);
inline constexpr unsigned kEvery = (1U << kNumOps) - 1;
inline constexpr unsigned kPlaced = kEvery & ~bit(Op::Drop);

struct FieldRule {
  std::string_view name;
  FieldType type;
  unsigned taken_by;   // bits of Op
  unsigned needed_by;  // the others' default: no values, compute, 0
};

// A receive takes the seconds of its send. A transfer has a layer or an element.
inline constexpr std::array kFields = {
    FieldRule{
        "layer", FieldType::Integer, kLayered | kTransfer | bit(Op::Add), kLayered | bit(Op::Add)},
    FieldRule{"element", FieldType::Integer, kTransfer, 0},
    FieldRule{"units",
              FieldType::Integers,
              kOfUnits | bit(Op::Add) | bit(Op::Step),
              bit(Op::Reduce) | bit(Op::Add)},
    FieldRule{"mb", FieldType::Integer, kWorking | kTransfer | kOfUnits, kWorking | kTransfer},
    FieldRule{"keep", FieldType::Word, bit(Op::Forward), bit(Op::Forward)},
    FieldRule{"group", FieldType::Integer, kCollective, kCollective},
    FieldRule{"to", FieldType::Word, bit(Op::Reduce), bit(Op::Reduce)},
    FieldRule{"reads", FieldType::Names, kEvery & ~kReceive, kWorking | kSend},
    FieldRule{"makes", FieldType::Sizes, kEvery & ~kSend, kWorking | kReceive | bit(Op::Stash)},
    FieldRule{"sets", FieldType::Names, kEvery & ~kTransfer, 0},
    FieldRule{"updates", FieldType::Names, kEvery & ~kTransfer, 0},
    FieldRule{"frees", FieldType::Names, kEvery, kWorking | bit(Op::Drop)},
    FieldRule{"on", FieldType::Word, kEvery, kPlaced},
    FieldRule{"seconds", FieldType::Number, kEvery & ~kReceive, kPlaced & ~kReceive},
    FieldRule{"working", FieldType::Integer, kEvery, kPlaced},
    FieldRule{"sends", FieldType::Integer, kSend | kCollective, 0},
};

struct ResourceRule {
  std::string_view name;
  bool has_index;
};
// In the order of ResourceKind.
inline constexpr std::array<ResourceRule, kNumResourceKinds> kResources = {{
    {"compute", false},
    {"host", false},
    {"copy", true},
    {"disk", true},
    {"link", true},
    {"inlet", true},
    {"line", true},
}};

std::string spell_resource(const Resource& resource);

}  // namespace penstock::program
