// A second opinion on programs: runs one by what its values contain, not by their numbers. It asks
// whether the step would compute the right thing within its memory, and knows nothing of the
// verifier's bookkeeping. Two values with the same kind, layer and micro-batch have the same
// content, so that one is as good as the other.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "penstock/program/program.h"

namespace penstock::test {

class ContentInterpreter {
 public:
  explicit ContentInterpreter(const program::Program& program)
      : program_(program), rank_(program.ranks[0]) {}

  // What goes wrong first, or nothing: then the program is harmless.
  std::optional<std::string> run() {
    held_bytes_ = rank_.resident_bytes();
    for (const program::ValueId id : rank_.given) {
      add(id);
    }
    for (const program::Instruction& instruction : rank_.instructions) {
      execute(instruction);
      if (harm_) {
        return harm_;
      }
    }
    finish();
    return harm_;
  }

 private:
  using Content = std::tuple<program::ValueKind, int32_t, int32_t>;  // kind, layer, micro-batch

  void harm(const std::string& what) {
    if (!harm_) {
      harm_ = what;
    }
  }
  Content content(program::ValueId id) const {
    const program::Value& value = rank_.values[static_cast<size_t>(id)];
    return {value.kind, value.layer, value.micro_batch};
  }
  int64_t bytes(program::ValueId id) const { return rank_.values[static_cast<size_t>(id)].bytes; }

  void add(program::ValueId id) {
    ++copies_[content(id)];
    held_bytes_ += bytes(id);
  }
  void remove(program::ValueId id) {
    if (copies_[content(id)]-- == 0) {
      harm("frees what is not there");
    }
    held_bytes_ -= bytes(id);
  }
  void need(program::ValueKind kind, int32_t layer, int32_t micro_batch) {
    if (copies_[{kind, layer, micro_batch}] == 0) {
      harm("lacks what it needs");
    }
  }

  void execute(const program::Instruction& instruction) {
    using program::Op;
    if (has_stepped_ && instruction.op != Op::Drop) {
      harm("works after the step");
    }
    switch (instruction.op) {
      case Op::Clear:
        if (contributions_.size() > 0) {
          harm("clears a part of the gradients");
        }
        is_cleared_ = true;
        break;
      case Op::Forward:
        forward(instruction);
        break;
      case Op::Loss:
        need(program::ValueKind::Activation, program_.loss_index(), instruction.micro_batch);
        need(program::ValueKind::Targets, program_.loss_index(), instruction.micro_batch);
        contribute(program_.loss_index(), instruction.micro_batch);
        break;
      case Op::Backward:
        backward(instruction);
        break;
      case Op::Drop:
        break;
      case Op::Step:
        step();
        break;
    }
    if (rank_.limit_bytes > 0 && held_bytes_ + instruction.working_bytes > rank_.limit_bytes) {
      harm("exceeds the limit");
    }
    for (const program::ValueId id : instruction.makes) {
      add(id);
    }
    for (const program::ValueId id : instruction.frees) {
      remove(id);
    }
  }

  void forward(const program::Instruction& instruction) {
    need(program::ValueKind::Activation, instruction.layer, instruction.micro_batch);
    if (instruction.keep != program::kKeepNothing) {
      ways_[{instruction.layer, instruction.micro_batch}] = instruction.keep;
    }
  }

  void backward(const program::Instruction& instruction) {
    const int32_t layer = instruction.layer, micro_batch = instruction.micro_batch;
    need(program::ValueKind::Activation, layer, micro_batch);
    need(program::ValueKind::Saved, layer, micro_batch);
    need(program::ValueKind::Gradient, layer + 1, micro_batch);
    const auto way = ways_.find({layer, micro_batch});
    if (way != ways_.end() && program_.layers[static_cast<size_t>(layer)]
                                  .ways[static_cast<size_t>(way->second)]
                                  .needs_output) {
      need(program::ValueKind::Activation, layer + 1, micro_batch);
    }
    contribute(layer, micro_batch);
  }

  // A loss or backward adds its part to the gradients.
  void contribute(int32_t layer, int32_t micro_batch) {
    if (!is_cleared_) {
      harm("adds to what was not cleared");
    }
    if (++contributions_[{layer, micro_batch}] > 1) {
      harm("adds a part twice");
    }
  }

  void step() {
    const size_t parts = (program_.layers.size() + 1) * static_cast<size_t>(program_.micro_batches);
    if (!is_cleared_ || contributions_.size() != parts) {
      harm("steps with incomplete gradients");
    }
    has_stepped_ = true;
  }

  void finish() {
    if (!has_stepped_) {
      harm("never steps");
    }
    for (const auto& [content, count] : copies_) {
      if (count > 0) {
        harm("holds a value for ever");
      }
    }
  }

  const program::Program& program_;
  const program::RankProgram& rank_;
  std::map<Content, int> copies_;
  std::map<std::pair<int32_t, int32_t>, int32_t> ways_;       // by layer and micro-batch
  std::map<std::pair<int32_t, int32_t>, int> contributions_;  // likewise
  int64_t held_bytes_ = 0;
  bool is_cleared_ = false, has_stepped_ = false;
  std::optional<std::string> harm_;
};

}  // namespace penstock::test
