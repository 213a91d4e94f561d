// A sound program of two layers, small enough to break by hand.
#pragma once

#include "penstock/program/program.h"

namespace penstock::test {

enum SmallValue : program::ValueId { kWeights, kX0, kTargets, kX1, kS0, kX2, kS1, kD2, kD1 };
enum SmallLine { kForwardA, kForwardB, kLoss, kBackwardB, kBackwardA, kStep };

// Layer "a" has one save mode, "b" has two, of which the second needs no output. All is kept. It
// holds 100 bytes of weights, of no unit, and is highest, with 132 bytes, in the backward of a.
inline program::Program small_program() {
  using program::layer_value;
  using program::Op;
  using program::ValueKind;
  program::Program program;
  program.layers = {{"a", {{"all", true}}}, {"b", {{"all", true}, {"lean", false}}}};
  program::RankProgram rank;
  rank.hold({.kind = ValueKind::Fixed, .bytes = 100}, "weights");
  for (const program::Value& value : {layer_value(ValueKind::Activation, 0, 0, 10),
                                      layer_value(ValueKind::Targets, 2, 0, 1),
                                      layer_value(ValueKind::Activation, 1, 0, 4),
                                      layer_value(ValueKind::Saved, 0, 0, 6),
                                      layer_value(ValueKind::Activation, 2, 0, 2),
                                      layer_value(ValueKind::Saved, 1, 0, 3),
                                      layer_value(ValueKind::Gradient, 2, 0, 2),
                                      layer_value(ValueKind::Gradient, 1, 0, 4)}) {
    rank.values.push_back(value);
  }
  rank.given = {kX0, kTargets};
  rank.instructions = {{.op = Op::Forward,
                        .layer = 0,
                        .micro_batch = 0,
                        .keep = 0,
                        .reads = {kX0},
                        .makes = {kX1, kS0},
                        .seconds = 1,
                        .working_bytes = 10},
                       {.op = Op::Forward,
                        .layer = 1,
                        .micro_batch = 0,
                        .keep = 0,
                        .reads = {kX1},
                        .makes = {kX2, kS1},
                        .seconds = 1,
                        .working_bytes = 5},
                       {.op = Op::Loss,
                        .micro_batch = 0,
                        .reads = {kX2, kTargets},
                        .makes = {kD2},
                        .frees = {kTargets},
                        .seconds = 1,
                        .working_bytes = 2},
                       {.op = Op::Backward,
                        .layer = 1,
                        .micro_batch = 0,
                        .reads = {kX1, kS1, kD2, kX2},
                        .makes = {kD1},
                        .frees = {kX2, kS1, kD2},
                        .seconds = 2,
                        .working_bytes = 4},
                       {.op = Op::Backward,
                        .layer = 0,
                        .micro_batch = 0,
                        .reads = {kX0, kS0, kD1, kX1},
                        .frees = {kX0, kX1, kS0, kD1},
                        .seconds = 2,
                        .working_bytes = 8},
                       {.op = Op::Step, .seconds = 1}};
  program.ranks = {rank};
  return program;
}

}  // namespace penstock::test
