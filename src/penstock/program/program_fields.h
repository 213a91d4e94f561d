// The words that reading and spelling a program share, and which instruction takes which field.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "penstock/program/program.h"
#include "penstock/program/program_reader.h"

namespace penstock::program {

inline constexpr std::string_view kNoLimit = "none";
inline constexpr std::string_view kNoWay = "nothing";
inline constexpr std::string_view kNeedsOutput = "+output";
inline constexpr std::string_view kToReplicas = "replicas";

inline constexpr std::array kOps = {Op::Clear,
                                    Op::Forward,
                                    Op::Loss,
                                    Op::Backward,
                                    Op::BackwardInput,
                                    Op::BackwardWeight,
                                    Op::Send,
                                    Op::Receive,
                                    Op::Drop,
                                    Op::Step,
                                    Op::Stash,
                                    Op::Gather,
                                    Op::Reduce};

constexpr unsigned bit(Op op) {
  return 1U << static_cast<unsigned>(op);
}

inline constexpr unsigned kSend = bit(Op::Send), kReceive = bit(Op::Receive);
inline constexpr unsigned kTransfer = kSend | kReceive;
inline constexpr unsigned kCollective = bit(Op::Gather) | bit(Op::Reduce);
inline constexpr unsigned kLayered =
    bit(Op::Forward) | bit(Op::Backward) | bit(Op::BackwardInput) | bit(Op::BackwardWeight);
inline constexpr unsigned kWorking = kLayered | bit(Op::Loss);
inline constexpr unsigned kPlaced =
    kWorking | bit(Op::Clear) | bit(Op::Step) | bit(Op::Stash) | kTransfer | kCollective;
inline constexpr unsigned kAll = kPlaced | bit(Op::Drop);

struct FieldRule {
  std::string_view name;
  FieldType type;
  unsigned taken_by;   // bits of Op
  unsigned needed_by;  // the others' default: no values, compute, 0
};

// A receive takes the seconds of its send.
inline constexpr std::array kFields = {
    FieldRule{"layer", FieldType::Integer, kLayered | kTransfer, kLayered | kTransfer},
    FieldRule{"unit", FieldType::Integer, kCollective, kCollective},
    FieldRule{"mb", FieldType::Integer, kWorking | kTransfer | kCollective, kWorking | kTransfer},
    FieldRule{"keep", FieldType::Word, bit(Op::Forward), bit(Op::Forward)},
    FieldRule{"reads", FieldType::Names, kAll & ~kReceive, kWorking | kSend},
    FieldRule{"makes", FieldType::Sizes, kAll & ~kSend, kWorking | kReceive | bit(Op::Stash)},
    FieldRule{"frees", FieldType::Names, kAll, kWorking | bit(Op::Drop)},
    FieldRule{"on", FieldType::Word, kAll, kPlaced},
    FieldRule{"seconds", FieldType::Number, kAll & ~kReceive, kPlaced & ~kReceive},
    FieldRule{"working", FieldType::Integer, kAll, kPlaced},
};

std::string spell_resource(const Resource& resource);

}  // namespace penstock::program
