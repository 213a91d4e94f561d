// A second opinion on programs: runs one by what its values contain, not by their numbers. It asks
// whether the step would compute the right thing within its memory, and knows nothing of the
// verifier's bookkeeping. Two values with the same kind, layer and micro-batch have the same
// content, so that one is as good as the other.
//
// Ranks take turns: each goes as far as it can. What is sent lies in a queue of its channel until
// the peer takes it, and whoever frees it waits for that.
//
// Of a program with several updates it asks besides whether every gradient goes into its own
// update, and whether a micro-batch meets one version of the weights at a layer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "penstock/program/program.h"

namespace penstock::test {

class ContentInterpreter {
 public:
  explicit ContentInterpreter(const program::Program& program) : program_(program) {
    for (const program::RankProgram& rank : program.ranks) {
      ranks_.push_back({rank, rank.resident_bytes()});
    }
  }

  // What goes wrong first, or nothing: then the program is harmless.
  std::optional<std::string> run() {
    for (Rank& rank : ranks_) {
      for (const program::ValueId id : rank.program.given) {
        add(rank, id);
      }
    }
    while (!harm_ && !is_over()) {
      bool has_moved = false;
      for (size_t i = 0; i < ranks_.size() && !harm_; ++i) {
        has_moved = go_on(static_cast<int32_t>(i)) || has_moved;
      }
      if (!has_moved) {
        harm("ranks wait for ever");
      }
    }
    if (!harm_) {
      finish();
    }
    return harm_;
  }

 private:
  using Content = std::tuple<program::ValueKind, int32_t, int32_t>;  // kind, layer, micro-batch

  struct Rank {
    const program::RankProgram& program;
    int64_t held_bytes = 0;
    size_t next = 0;
    std::map<Content, int> copies;
    std::map<Content, int> on_the_way;                        // sent and not yet received
    std::map<std::pair<int32_t, int32_t>, int32_t> ways;      // by layer and micro-batch
    std::map<std::pair<int32_t, int32_t>, int32_t> versions;  // likewise, of the weights
    bool is_cleared = false, has_parts = false;
    int32_t steps = 0;
  };
  struct Message {
    Content content;
    int64_t bytes = 0;
  };

  void harm(const std::string& what) {
    if (!harm_) {
      harm_ = what;
    }
  }
  static const program::Value& value(const Rank& rank, program::ValueId id) {
    return rank.program.values[static_cast<size_t>(id)];
  }
  static Content content(const Rank& rank, program::ValueId id) {
    const program::Value& one = value(rank, id);
    return {one.kind, one.layer, one.micro_batch};
  }

  void add(Rank& rank, program::ValueId id) {
    ++rank.copies[content(rank, id)];
    rank.held_bytes += value(rank, id).bytes;
  }
  void remove(Rank& rank, program::ValueId id) {
    if (rank.copies[content(rank, id)]-- == 0) {
      harm("frees what is not there");
    }
    rank.held_bytes -= value(rank, id).bytes;
  }
  void need(Rank& rank, program::ValueKind kind, int32_t layer, int32_t micro_batch) {
    if (rank.copies[{kind, layer, micro_batch}] == 0) {
      harm("lacks what it needs");
    }
  }

  bool is_over() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return rank.next == rank.program.instructions.size();
    });
  }

  // Whether it got anywhere.
  bool go_on(int32_t number) {
    Rank& rank = ranks_[static_cast<size_t>(number)];
    const size_t before = rank.next;
    while (!harm_ && rank.next < rank.program.instructions.size()) {
      const program::Instruction& instruction = rank.program.instructions[rank.next];
      if (must_wait(rank, number, instruction)) {
        break;
      }
      execute(rank, number, instruction);
      ++rank.next;
    }
    return rank.next > before;
  }

  bool must_wait(Rank& rank, int32_t number, const program::Instruction& instruction) {
    if (instruction.op == program::Op::Receive &&
        channels_[channel_of(rank.program, number, instruction)].empty()) {
      return true;
    }
    if (instruction.op == program::Op::Step && program_.updates == 1) {
      return !std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& other) {
        return other.steps > 0 || is_at_step(other);
      });
    }
    return std::any_of(
        instruction.frees.begin(), instruction.frees.end(), [&](program::ValueId id) {
          // Another copy may go while one is on its way.
          const Content freed = content(rank, id);
          return rank.on_the_way[freed] > 0 && rank.on_the_way[freed] >= rank.copies[freed];
        });
  }
  static bool is_at_step(const Rank& rank) {
    return rank.next < rank.program.instructions.size() &&
           rank.program.instructions[rank.next].op == program::Op::Step;
  }

  void execute(Rank& rank, int32_t number, const program::Instruction& instruction) {
    if (rank.steps >= program_.updates && instruction.op != program::Op::Drop) {
      harm("works after the last step");
    }
    work(rank, number, instruction);
    const int64_t limit = rank.program.limit_bytes;
    if (limit > 0 && rank.held_bytes + instruction.working_bytes > limit) {
      harm("exceeds the limit");
    }
    for (const program::ValueId id : instruction.makes) {
      add(rank, id);
    }
    for (const program::ValueId id : instruction.frees) {
      remove(rank, id);
    }
  }

  void work(Rank& rank, int32_t number, const program::Instruction& instruction) {
    using program::Op;
    using program::ValueKind;
    const int32_t layer = instruction.layer, micro_batch = instruction.micro_batch;
    switch (instruction.op) {
      case Op::Clear:
        return clear(rank);
      case Op::Forward:
        meet_weights(rank, instruction);
        return forward(rank, instruction);
      case Op::Loss:
        need(rank, ValueKind::Activation, program_.loss_index(), micro_batch);
        need(rank, ValueKind::Targets, program_.loss_index(), micro_batch);
        return contribute(rank, number, program_.loss_index(), micro_batch);
      case Op::Backward:
        meet_weights(rank, instruction);
        need_for_backward(rank, instruction);
        return contribute(rank, number, layer, micro_batch);
      case Op::BackwardInput:
        meet_weights(rank, instruction);
        return need_for_backward(rank, instruction);
      case Op::BackwardWeight:
        meet_weights(rank, instruction);
        need(rank, ValueKind::WeightWork, layer, micro_batch);
        return contribute(rank, number, layer, micro_batch);
      case Op::Send:
        return send(rank, number, instruction);
      case Op::Receive:
        return receive(rank, number, instruction);
      case Op::Drop:
        return;
      case Op::Step:
        return step(rank);
      case Op::Stash:
        if (value(rank, instruction.makes[0]).micro_batch != rank.steps) {
          harm("copies weights of another version");
        }
        return;
      case Op::Gather:
      case Op::Reduce:
        return harm("has no replicas to meet");
    }
  }

  void clear(Rank& rank) {
    if (rank.has_parts) {
      harm("clears a part of the gradients");
    }
    rank.is_cleared = true;
  }

  // The newest, or a copy that is read.
  void meet_weights(Rank& rank, const program::Instruction& instruction) {
    int32_t version = rank.steps;
    for (const program::ValueId id : instruction.reads) {
      if (value(rank, id).kind == program::ValueKind::Weights) {
        version = value(rank, id).micro_batch;
        need(rank, program::ValueKind::Weights, program_.loss_index(), version);
      }
    }
    const std::pair place(instruction.layer, instruction.micro_batch);
    const int32_t first = rank.versions.try_emplace(place, version).first->second;
    if (first != version && !program_.mixes_weights) {
      harm("mixes versions of the weights");
    }
  }

  void forward(Rank& rank, const program::Instruction& instruction) {
    need(rank, program::ValueKind::Activation, instruction.layer, instruction.micro_batch);
    if (instruction.keep != program::kKeepNothing) {
      rank.ways[{instruction.layer, instruction.micro_batch}] = instruction.keep;
    }
  }

  void need_for_backward(Rank& rank, const program::Instruction& instruction) {
    const int32_t layer = instruction.layer, micro_batch = instruction.micro_batch;
    need(rank, program::ValueKind::Activation, layer, micro_batch);
    need(rank, program::ValueKind::Saved, layer, micro_batch);
    need(rank, program::ValueKind::Gradient, layer + 1, micro_batch);
    const auto way = rank.ways.find({layer, micro_batch});
    if (way != rank.ways.end() && program_.layers[static_cast<size_t>(layer)]
                                      .ways[static_cast<size_t>(way->second)]
                                      .needs_output) {
      need(rank, program::ValueKind::Activation, layer + 1, micro_batch);
    }
  }

  // A loss or backward adds its part to the gradients, which are with one rank.
  void contribute(Rank& rank, int32_t number, int32_t layer, int32_t micro_batch) {
    if (!rank.is_cleared) {
      harm("adds to what was not cleared");
    }
    if (micro_batch / (program_.micro_batches / program_.updates) != rank.steps) {
      harm("adds to the gradients of another update");
    }
    rank.has_parts = true;
    if (!contributions_.insert({{layer, micro_batch}, number}).second) {
      harm("adds a part twice");
    }
    if (owners_.insert({layer, number}).first->second != number) {
      harm("adds to gradients that another rank has");
    }
  }

  void send(Rank& rank, int32_t number, const program::Instruction& instruction) {
    const program::ValueId id = instruction.reads[0];
    const auto& [kind, layer, micro_batch] = content(rank, id);
    need(rank, kind, layer, micro_batch);
    ++rank.on_the_way[content(rank, id)];
    channels_[channel_of(rank.program, number, instruction)].push_back(
        {content(rank, id), value(rank, id).bytes});
  }

  void receive(Rank& rank, int32_t number, const program::Instruction& instruction) {
    const program::Channel channel = channel_of(rank.program, number, instruction);
    std::deque<Message>& queue = channels_[channel];
    const Message message = queue.front();
    queue.pop_front();
    --ranks_[static_cast<size_t>(channel.from)].on_the_way[message.content];
    const program::ValueId id = instruction.makes[0];
    if (message.content != content(rank, id) || message.bytes != value(rank, id).bytes) {
      harm("receives something else");
    }
  }

  // A part that comes after its update is harm where it comes, one that never comes at the end.
  void step(Rank& rank) {
    if (!rank.is_cleared) {
      harm("steps without having cleared");
    }
    ++rank.steps;
    rank.is_cleared = rank.has_parts = false;
  }

  void finish() {
    for (const Rank& rank : ranks_) {
      if (rank.steps != program_.updates) {
        harm("has another number of steps than updates");
      }
      for (const auto& [content, count] : rank.copies) {
        if (count > 0) {
          harm("holds a value for ever");
        }
      }
    }
    const size_t parts = (program_.layers.size() + 1) * static_cast<size_t>(program_.micro_batches);
    if (contributions_.size() != parts) {
      harm("steps with incomplete gradients");
    }
    for (const auto& [channel, queue] : channels_) {
      if (!queue.empty()) {
        harm("sends what nobody receives");
      }
    }
  }

  const program::Program& program_;
  std::vector<Rank> ranks_;
  std::map<program::Channel, std::deque<Message>> channels_;
  std::map<std::pair<int32_t, int32_t>, int32_t> contributions_;  // layer, micro-batch: by whom
  std::map<int32_t, int32_t> owners_;                             // of a layer's gradients
  std::optional<std::string> harm_;
};

}  // namespace penstock::test
