// A pipeline to draw: two ranks of two layers each, split backwards, and what is sent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/program/program.h"

#include "report/step_example.h"

namespace penstock::report {

// One rank of it, with layers `first` and `first + 1` of four.
class PipelineRank {
 public:
  explicit PipelineRank(int32_t number) : number_(number), first_(2 * number) {
    rank_.limit_bytes = 400 * kExampleMiB;
    for (const char* name : {"parameters", "gradients"}) {
      rank_.hold({.kind = program::ValueKind::Fixed, .bytes = 60 * kExampleMiB}, name);
    }
  }

  program::RankProgram make(int32_t micro_batches) {
    using program::Op;
    for (int32_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      const program::ValueKind kind =
          number_ == 0 ? program::ValueKind::Activation : program::ValueKind::Targets;
      given_.push_back(value(kind, number_ == 0 ? 0 : 4, micro_batch, 4));
    }
    rank_.given = given_;
    // The first rank runs ahead by one.
    const int32_t ahead = 1 - number_;
    for (int32_t micro_batch = 0; micro_batch < micro_batches + ahead; ++micro_batch) {
      if (micro_batch < micro_batches) {
        add_forwards(micro_batch);
      }
      if (micro_batch >= ahead) {
        add_backwards(micro_batch - ahead);
      }
    }
    add_update();
    return rank_;
  }

 private:
  struct Kept {
    std::vector<program::ValueId> x, s;
  };

  program::ValueId value(const program::Value& value) {
    rank_.values.push_back(value);
    return static_cast<program::ValueId>(rank_.values.size()) - 1;
  }
  program::ValueId value(program::ValueKind kind, int32_t layer, int32_t micro_batch, int64_t mib) {
    return value(program::layer_value(kind, layer, micro_batch, mib * kExampleMiB));
  }
  void add(program::Instruction instruction) {
    rank_.instructions.push_back(std::move(instruction));
  }

  program::ValueId receive(program::ValueKind kind, int32_t micro_batch) {
    const program::ValueId made = value(kind, 2, micro_batch, 8);
    add({.op = program::Op::Receive,
         .layer = 2,
         .micro_batch = micro_batch,
         .makes = {made},
         .resource = {program::ResourceKind::Inlet, 1 - number_},
         .working_bytes = 8 * kExampleMiB});
    return made;
  }
  void send(program::ValueId sent, int32_t micro_batch) {
    add({.op = program::Op::Send,
         .layer = 2,
         .micro_batch = micro_batch,
         .reads = {sent},
         .resource = {program::ResourceKind::Link, 1 - number_},
         .seconds = 1e-3});
  }

  void add_forwards(int32_t micro_batch) {
    using enum program::ValueKind;
    Kept kept;
    kept.x = {number_ == 0 ? given_[static_cast<size_t>(micro_batch)]
                           : receive(Activation, micro_batch)};
    for (int32_t layer = first_; layer < first_ + 2; ++layer) {
      const program::ValueId x = kept.x.back();
      kept.x.push_back(value(Activation, layer + 1, micro_batch, 8));
      kept.s.push_back(value(Saved, layer, micro_batch, 24));
      add({.op = program::Op::Forward,
           .layer = layer,
           .micro_batch = micro_batch,
           .keep = 0,
           .reads = {x},
           .makes = {kept.x.back(), kept.s.back()},
           .seconds = 3e-3,
           .working_bytes = 40 * kExampleMiB});
    }
    if (number_ == 0) {
      send(kept.x.back(), micro_batch);
    }
    kept_.push_back(kept);
  }

  void add_backwards(int32_t micro_batch) {
    using enum program::ValueKind;
    const Kept& kept = kept_[static_cast<size_t>(micro_batch)];
    program::ValueId d = -1;
    if (number_ == 0) {
      d = receive(Gradient, micro_batch);
      add({.op = program::Op::Drop, .frees = {kept.x[2]}});
    } else {
      const program::ValueId targets = given_[static_cast<size_t>(micro_batch)];
      d = value(Gradient, 4, micro_batch, 8);
      add({.op = program::Op::Loss,
           .micro_batch = micro_batch,
           .reads = {kept.x[2], targets},
           .makes = {d},
           .frees = {kept.x[2], targets},
           .seconds = 2e-3,
           .working_bytes = 16 * kExampleMiB});
    }
    add_split(micro_batch, kept, d);
  }

  // The gradient is sent before the weight gradients begin.
  void add_split(int32_t micro_batch, const Kept& kept, program::ValueId d) {
    using enum program::ValueKind;
    std::vector<program::ValueId> work;
    for (int32_t at = 1; at >= 0; --at) {
      const int32_t layer = first_ + at;
      program::Instruction backward = {
          .op = program::Op::BackwardInput,
          .layer = layer,
          .micro_batch = micro_batch,
          .reads = {kept.x[static_cast<size_t>(at)], kept.s[static_cast<size_t>(at)], d},
          .seconds = 3e-3,
          .working_bytes = 30 * kExampleMiB};
      backward.frees = backward.reads;
      if (layer > 0) {
        d = value(Gradient, layer, micro_batch, 8);
        backward.makes.push_back(d);
      }
      work.push_back(value(WeightWork, layer, micro_batch, 12));
      backward.makes.push_back(work.back());
      add(backward);
    }
    if (number_ == 1) {
      send(d, micro_batch);
    }
    for (size_t i = 0; i < work.size(); ++i) {
      add({.op = program::Op::BackwardWeight,
           .layer = first_ + 1 - static_cast<int32_t>(i),
           .micro_batch = micro_batch,
           .reads = {work[i]},
           .frees = {work[i]},
           .seconds = 2.5e-3});
    }
    if (number_ == 1) {
      add({.op = program::Op::Drop, .frees = {d}});
    }
  }

  // Both ranks wait here until they have each other's squares.
  void add_update() {
    using enum program::ValueKind;
    const program::ValueId own = value({.kind = Squares, .version = 0});
    const program::ValueId all = value({.kind = AllSquares, .version = 0});
    const program::ValueId decision = value({.kind = Decision, .version = 0});
    add({.op = program::Op::Squares, .makes = {own}});
    add({.op = program::Op::Gather,
         .group = 0,
         .reads = {own},
         .makes = {all},
         .frees = {own},
         .seconds = 1e-3,
         .sent_bytes = 64});
    add({.op = program::Op::Decide, .reads = {all}, .makes = {decision}, .frees = {all}});
    add({.op = program::Op::Step,
         .reads = {decision},
         .frees = {decision},
         .seconds = 4e-3,
         .working_bytes = 2 * kExampleMiB});
  }

  const int32_t number_, first_;
  program::RankProgram rank_;
  std::vector<program::ValueId> given_;
  std::vector<Kept> kept_;
};

inline program::Program pipeline_program(int32_t micro_batches) {
  program::Program program;
  program.micro_batches = micro_batches;
  program.mesh.pipeline = 2;
  program.groups = {comm::all()};
  for (int32_t layer = 0; layer < 4; ++layer) {
    const std::string name = cat("block ", layer / 2, layer % 2 == 0 ? " attention" : " mlp");
    program.layers.push_back({name, {{"all", false}}});
  }
  program.ranks = {PipelineRank(0).make(micro_batches), PipelineRank(1).make(micro_batches)};
  return program;
}

}  // namespace penstock::report
