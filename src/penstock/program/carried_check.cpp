#include "penstock/program/carried_check.h"

#include <algorithm>
#include <functional>
#include <set>

#include "penstock/base/error.h"

namespace penstock::program {

namespace {

bool has(const std::vector<ValueId>& list, ValueId id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

}  // namespace

std::optional<Violation> find_wrong_carried(const Program& program) {
  std::set<std::string> names;
  for (const Carried& element : program.carried) {
    const auto refuse = [&](const auto&... parts) {
      return Violation{
          .text = cat("the program: the carried element \"", element.name, "\" ", parts...)};
    };
    if (element.name.empty() || !names.insert(element.name).second) {
      return refuse("has no name of its own");
    }
    const std::vector<int32_t>& readers = element.readers;
    if (element.born < -1 || element.born >= program.loss_index()) {
      return refuse("is made by layer ", element.born, ", which is not there");
    }
    if (std::adjacent_find(readers.begin(), readers.end(), std::greater_equal<>()) !=
            readers.end() ||
        (!readers.empty() &&
         (readers.front() <= element.born || readers.back() > program.loss_index()))) {
      return refuse("has readers that are out of order or out of range");
    }
    // Those of one layer for the next alone are part of the activation.
    if (readers.empty() || readers == std::vector{element.born + 1}) {
      return refuse("is read by no layer but the next");
    }
    if (element.born < 0 && element.has_gradient) {
      return refuse("comes with the batch, and has a gradient");
    }
  }
  return std::nullopt;
}

std::optional<Violation> find_wrong_message(const Program& program,
                                            const CarriedMessages& messages) {
  for (const auto& [channel, received] : messages.received) {
    const auto sent = messages.sent.find(channel);
    const size_t common = sent == messages.sent.end() ? 0 : sent->second.size();
    for (size_t k = 0; k < std::min(received.size(), common); ++k) {
      const auto& [instruction, reader] = received[k];
      if (reader == CarriedMessages::kAny || reader == sent->second[k].reader) {
        continue;
      }
      const auto& list = program.ranks[static_cast<size_t>(channel.to)].instructions;
      return Violation{channel.to,
                       instruction,
                       cat("rank ",
                           channel.to,
                           ", instruction ",
                           instruction,
                           " (",
                           describe(program, list[static_cast<size_t>(instruction)]),
                           "): what rank ",
                           channel.from,
                           " sends has other parts than its reader here wants")};
    }
  }
  return std::nullopt;
}

CarriedCheck::CarriedCheck(const RankLives& lives, CarriedMessages& messages)
    : lives_(lives),
      program_(lives.program()),
      messages_(messages),
      at_(carried_by_layer(program_.carried, program_.loss_index())),
      last_(lives.rank().values.size(), CarriedMessages::kAny) {}

std::vector<ValueId> CarriedCheck::require_read(const Instruction& instruction,
                                                int32_t layer) const {
  std::vector<ValueId> found;
  for (const int32_t number : at(layer).reads) {
    found.push_back(lives_.read_of(instruction, ValueKind::Carried, number));
  }
  return found;
}

RankLives::Counts CarriedCheck::check_forward(const Instruction& instruction,
                                              bool makes_output) const {
  const CarriedAt& here = at(instruction.layer);
  require_read(instruction, instruction.layer);
  if (makes_output) {
    for (const int32_t number : here.makes) {
      lives_.made_of(instruction, ValueKind::Carried, number);
    }
  }
  return {.reads = here.reads.size(), .makes = makes_output ? here.makes.size() : 0};
}

RankLives::Counts CarriedCheck::check_loss(const Instruction& instruction) {
  const int32_t last = program_.loss_index();
  RankLives::Counts counts;
  if (!program_.is_evaluation()) {
    counts = add_parts(instruction, last);
  }
  counts.reads += require_read(instruction, last).size();
  return counts;
}

// The gradient has the part of `reader`, and those of all readers after it. Of one that was received
// its sender has to say so.
void CarriedCheck::require_last(ValueId id, int32_t reader) {
  if (const auto from = unused_.find(id); from != unused_.end()) {
    const auto& [channel, index] = from->second;
    messages_.received[channel][index].reader = reader;
    unused_.erase(from);
  } else if (last_[static_cast<size_t>(id)] != reader) {
    lives_.refuse(lives_.name(id), " lacks the part of the reader before, or has later ones");
  }
}

// The last reader makes the gradient, the others add to it.
RankLives::Counts CarriedCheck::add_parts(const Instruction& instruction, int32_t layer) {
  RankLives::Counts counts;
  for (const int32_t number : at(layer).reads) {
    const Carried& read = element(number);
    if (!read.has_gradient) {
      continue;
    }
    ValueId gradient;
    if (layer == read.readers.back()) {
      gradient = lives_.made_of(instruction, ValueKind::CarriedGradient, number);
      ++counts.makes;
    } else {
      gradient = lives_.updated_of(instruction, ValueKind::CarriedGradient, number);
      require_last(gradient, read.reader_after(layer));
      ++counts.changes;
    }
    last_[static_cast<size_t>(gradient)] = layer;
  }
  return counts;
}

RankLives::Counts CarriedCheck::check_backward(const Instruction& instruction,
                                               int32_t forward,
                                               bool needs_output) {
  const int32_t layer = instruction.layer;
  RankLives::Counts counts = add_parts(instruction, layer);
  const std::vector<ValueId> read = require_read(instruction, layer);
  counts.reads += read.size();
  if (instruction.op == Op::BackwardInput) {
    read_by_input_[{layer, instruction.micro_batch}] = read;
  }
  for (const int32_t number : at(layer).makes) {
    if (needs_output) {
      const ValueId made = lives_.read_of(instruction, ValueKind::Carried, number);
      if (lives_.maker_index(made) != forward) {
        lives_.refuse("reads ", lives_.name(made), ", which another forward has made");
      }
      ++counts.reads;
    }
    if (element(number).has_gradient) {
      const ValueId gradient = lives_.read_of(instruction, ValueKind::CarriedGradient, number);
      require_last(gradient, element(number).readers.front());
      ++counts.reads;
    }
  }
  return counts;
}

// What is left for the weight gradient may lie in what the input gradient has read.
RankLives::Counts CarriedCheck::check_backward_weight(const Instruction& instruction) const {
  const auto found = read_by_input_.find({instruction.layer, instruction.micro_batch});
  if (found == read_by_input_.end()) {
    return {};  // it has no work, and that was refused
  }
  for (const ValueId id : found->second) {
    if (!has(instruction.reads, id)) {
      lives_.refuse("does not read ", lives_.name(id), ", which its backward-input has read");
    }
  }
  return {.reads = found->second.size()};
}

void CarriedCheck::check_transfer(const Instruction& instruction, int32_t at) {
  const bool is_send = instruction.op == Op::Send;
  const ValueId id = is_send ? instruction.reads[0] : instruction.makes[0];
  const Value& moved = lives_.value(id);
  if (moved.kind == ValueKind::Carried && element(moved.element).born < 0) {
    lives_.refuse("moves ", lives_.name(id), ", which the batch brings to every rank");
  }
  if (moved.kind != ValueKind::CarriedGradient) {
    return;
  }
  const Channel channel = channel_of(lives_.rank(), lives_.number(), instruction);
  if (!is_send) {
    std::vector<CarriedMessages::Message>& received = messages_.received[channel];
    unused_[id] = {channel, received.size()};
    received.push_back({at});
    return;
  }
  if (unused_.contains(id)) {
    lives_.refuse("sends ", lives_.name(id), ", which it has received and not added to");
  }
  messages_.sent[channel].push_back({at, last_[static_cast<size_t>(id)]});
}

}  // namespace penstock::program
