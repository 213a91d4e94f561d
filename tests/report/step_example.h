// Programs to draw: a chain of layers of which the first ones are recomputed, and a "measurement"
// that differs from the prediction a little.
#pragma once

#include <cstdint>
#include <string>

#include "penstock/base/text.h"
#include "penstock/program/program.h"
#include "penstock/program/simulate.h"

namespace penstock::report {

struct ExampleSize {
  int32_t layers = 6, micro_batches = 2, ranks = 1;
  int32_t recomputed = 3;  // of the layers
};

inline constexpr int64_t kExampleMiB = 1 << 20;

// Writes the instructions of one rank: per micro-batch forwards, loss, backwards; then the update,
// of which the decision takes no time.
class ExampleRank {
 public:
  ExampleRank(const ExampleSize& size, double squares_seconds) : size_(size) {
    for (const char* name : {"parameters", "gradients"}) {
      rank_.hold({.kind = program::ValueKind::Fixed, .bytes = 180 * kExampleMiB}, name);
    }
    for (int32_t micro_batch = 0; micro_batch < size.micro_batches; ++micro_batch) {
      add_micro_batch(micro_batch);
    }
    const program::ValueId squares = value({.kind = program::ValueKind::Squares, .version = 0});
    const program::ValueId decision = value({.kind = program::ValueKind::Decision, .version = 0});
    add({.op = program::Op::Squares, .makes = {squares}, .seconds = squares_seconds});
    add({.op = program::Op::Decide, .reads = {squares}, .makes = {decision}, .frees = {squares}});
    add({.op = program::Op::Step,
         .reads = {decision},
         .frees = {decision},
         .seconds = 7e-3,
         .working_bytes = 2 * kExampleMiB});
  }
  program::RankProgram take(int64_t limit_bytes) {
    rank_.limit_bytes = limit_bytes;
    return rank_;
  }

 private:
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

  void add_micro_batch(int32_t micro_batch) {
    using enum program::ValueKind;
    std::vector<program::ValueId> x = {value(Activation, 0, micro_batch, 4)}, s;
    const program::ValueId targets = value(Targets, size_.layers, micro_batch, 1);
    rank_.given.insert(rank_.given.end(), {x[0], targets});
    for (int32_t layer = 0; layer < size_.layers; ++layer) {
      const bool keeps = layer >= size_.recomputed;
      x.push_back(value(Activation, layer + 1, micro_batch, 4));
      s.push_back(keeps ? value(Saved, layer, micro_batch, 20 + layer % 2 * 12) : -1);
      add_forward(layer, micro_batch, x, s);
    }
    program::ValueId d = value(Gradient, size_.layers, micro_batch, 4);
    add({.op = program::Op::Loss,
         .micro_batch = micro_batch,
         .reads = {x.back(), targets},
         .makes = {d},
         .frees = {x.back(), targets},
         .seconds = 6e-3,
         .working_bytes = 40 * kExampleMiB});
    for (int32_t layer = size_.layers - 1; layer >= 0; --layer) {
      d = add_backward(layer, micro_batch, x, s, d);
    }
  }

  void add_forward(int32_t layer,
                   int32_t micro_batch,
                   const std::vector<program::ValueId>& x,
                   const std::vector<program::ValueId>& s) {
    const size_t at = static_cast<size_t>(layer);
    program::Instruction forward = {.op = program::Op::Forward,
                                    .layer = layer,
                                    .micro_batch = micro_batch,
                                    .keep = s[at] < 0 ? program::kKeepNothing : 0,
                                    .reads = {x[at]},
                                    .makes = {x[at + 1]},
                                    .seconds = 2e-3 + 1e-3 * (layer % 2),
                                    .working_bytes = 48 * kExampleMiB};
    if (s[at] >= 0) {
      forward.makes.push_back(s[at]);
    }
    add(forward);
  }

  // Recomputes first what forward did not keep. Returns the gradient that it makes.
  program::ValueId add_backward(int32_t layer,
                                int32_t micro_batch,
                                std::vector<program::ValueId>& x,
                                std::vector<program::ValueId>& s,
                                program::ValueId d) {
    using enum program::ValueKind;
    const size_t at = static_cast<size_t>(layer);
    if (s[at] < 0) {
      s[at] = value(Saved, layer, micro_batch, 20 + layer % 2 * 12);
      x[at + 1] = value(Activation, layer + 1, micro_batch, 4);
      add_forward(layer, micro_batch, x, s);
      rank_.instructions.back().frees = {x[at + 1]};
    }
    program::Instruction backward = {.op = program::Op::Backward,
                                     .layer = layer,
                                     .micro_batch = micro_batch,
                                     .reads = {x[at], s[at], d},
                                     .frees = {x[at], s[at], d},
                                     .seconds = 2 * (2e-3 + 1e-3 * (layer % 2)),
                                     .working_bytes = 60 * kExampleMiB};
    program::ValueId made = -1;
    if (layer > 0) {
      made = value(Gradient, layer, micro_batch, 4);
      backward.makes = {made};
    }
    add(backward);
    return made;
  }

  ExampleSize size_;
  program::RankProgram rank_;
};

inline program::Program example_program(const ExampleSize& size) {
  program::Program program;
  program.micro_batches = size.micro_batches;
  program.mesh.data = size.ranks;
  for (int32_t layer = 0; layer < size.layers; ++layer) {
    const std::string name = cat("block ", layer / 2, layer % 2 == 0 ? " attention" : " mlp");
    program.layers.push_back({name, {{"all", false}}});
  }
  for (int32_t rank = 0; rank < size.ranks; ++rank) {
    program.ranks.push_back(ExampleRank(size, 1e-3 * (1 + rank)).take(1024 * kExampleMiB));
  }
  return program;
}

// What a run of the program might record: every instruction a little slower or faster.
inline program::Timeline example_measurement(program::Program program) {
  for (program::RankProgram& rank : program.ranks) {
    for (size_t i = 0; i < rank.instructions.size(); ++i) {
      const double noise = static_cast<double>(i * 7919 % 101) / 100;  // 0 to 1
      rank.instructions[i].seconds *= 0.96 + 0.14 * noise;
      rank.instructions[i].working_bytes -= rank.instructions[i].working_bytes / 16;
    }
  }
  return program::simulate(program);
}

}  // namespace penstock::report
