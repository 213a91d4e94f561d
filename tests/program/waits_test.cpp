// Programs of several ranks: what is sent is received, and nobody waits for ever. Random pipelines
// with receives moved to other places are judged by verify() and by an order of all instructions
// found, or not found, in another way; and what can go on can be simulated.
#include "penstock/program/waits.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/plan/pipeline.h"
#include "penstock/program/program_text.h"
#include "penstock/program/simulate.h"

#include "program/instruction_order.h"

namespace penstock::program {

namespace {

using Random = std::mt19937;

int32_t pick(Random& random, int32_t least, int32_t most) {
  return std::uniform_int_distribution<int32_t>(least, most)(random);
}

Program random_pipeline(Random& random) {
  const auto& names = schedule::kind_names();
  const auto kind = schedule::parse_kind(
      names[static_cast<size_t>(pick(random, 0, static_cast<int32_t>(names.size()) - 1))]);
  const bool is_asynchronous = schedule::is_asynchronous(kind);
  schedule::Sizes sizes{.ranks = pick(random, 2, 8),
                        .micro_batches = pick(random, 1, 6),
                        .chunks = pick(random, 1, 3),
                        .updates = is_asynchronous ? pick(random, 1, 4) : 1};
  if (kind == schedule::Kind::PipeDream2BW) {
    sizes.micro_batches += sizes.ranks;
  }
  plan::Pipeline pipeline{.schedule = schedule::make_schedule(kind, sizes)};
  pipeline.weight_bytes.assign(static_cast<size_t>(sizes.ranks), 7);
  plan::CostTable table;
  pipeline.cuts.push_back(0);
  for (int32_t stage = 0; stage < pipeline.schedule.stages(); ++stage) {
    pipeline.cuts.push_back(pipeline.cuts.back() + pick(random, 1, 2));
  }
  int64_t bytes = pick(random, 1, 9);
  for (int32_t i = 0; i < pipeline.cuts.back(); ++i) {
    plan::LayerCost layer;
    layer.name = cat("layer ", i);
    layer.input_bytes = bytes;
    layer.output_bytes = bytes = pick(random, 1, 9);
    layer.modes = {{.saved_bytes = 20, .needs_output = pick(random, 0, 1) == 1}};
    table.layers.push_back(layer);
  }
  table.target_bytes = 1;
  pipeline.operations =
      plan::keep_everything(table, pipeline.cuts, pipeline.schedule.micro_batches);
  return plan::lower_pipeline(table, pipeline, plan::holdings_by_rank(table, pipeline), 0);
}

std::vector<int32_t> places_of(const RankProgram& rank, Op op) {
  std::vector<int32_t> places;
  for (size_t i = 0; i < rank.instructions.size(); ++i) {
    if (rank.instructions[i].op == op) {
      places.push_back(static_cast<int32_t>(i));
    }
  }
  return places;
}

// What it frees is freed by the next one instead, whose turn has not changed.
void move_before(RankProgram& rank, int32_t from, int32_t to) {
  std::vector<ValueId>& frees = rank.instructions[static_cast<size_t>(from)].frees;
  std::vector<ValueId>& later = rank.instructions[static_cast<size_t>(from) + 1].frees;
  later.insert(later.end(), frees.begin(), frees.end());
  frees.clear();
  const auto begin = rank.instructions.begin();
  std::rotate(begin + to, begin + from, begin + from + 1);
}

// Two receives of one rank in the other order, whose values are of one channel or not.
void swap_receives(Program& program, Random& random) {
  RankProgram& rank = program.ranks[static_cast<size_t>(
      pick(random, 0, static_cast<int32_t>(program.ranks.size()) - 1))];
  const std::vector<int32_t> places = places_of(rank, Op::Receive);
  if (places.size() < 2) {
    return;
  }
  const int32_t first = pick(random, 0, static_cast<int32_t>(places.size()) - 2);
  const int32_t second = pick(random, first + 1, static_cast<int32_t>(places.size()) - 1);
  move_before(rank, places[static_cast<size_t>(second)], places[static_cast<size_t>(first)]);
}

// Whether the k-th send and receive of every channel are of the same micro-batch.
bool has_matching_order(const Program& program) {
  std::map<Channel, std::vector<int32_t>> sends, receives;
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    for (const Instruction& one : program.ranks[r].instructions) {
      if (one.op == Op::Send || one.op == Op::Receive) {
        (one.op == Op::Send ? sends
                            : receives)[channel_of(program.ranks[r], static_cast<int32_t>(r), one)]
            .push_back(one.micro_batch);
      }
    }
  }
  return sends == receives;
}

}  // namespace

TEST(Waits, AreJudgedRightInThousandsOfRandomPrograms) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(cat("seed ", seed));
  Random random(seed);
  int good = 0, deadlocks = 0, mismatches = 0;
  while (good < 1000 || deadlocks < 1000) {
    Program program = random_pipeline(random);
    const int swaps = pick(random, 0, 2);
    for (int i = 0; i < swaps; ++i) {
      swap_receives(program, random);
    }
    const Verdict verdict = verify(program);
    if (!has_matching_order(program)) {
      ++mismatches;
      ASSERT_FALSE(verdict.is_sound());
    } else if (test::has_order(program)) {
      ++good;
      ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
      ASSERT_NO_THROW(simulate(program));
    } else {
      ++deadlocks;
      ASSERT_FALSE(verdict.is_sound());
      ASSERT_TRUE(verdict.violation->text.find("none can go on") != std::string::npos)
          << verdict.violation->text;
      ASSERT_THROW(simulate(program), InternalError);
    }
  }
  RecordProperty("good", good);
  RecordProperty("deadlocks", deadlocks);
  RecordProperty("mismatches", mismatches);
  std::printf("%d good, %d deadlocks, %d mismatches\n", good, deadlocks, mismatches);
}

namespace {

// Two ranks, one layer each, one micro-batch.
Program two_ranks() {
  plan::CostTable table;
  for (int i = 0; i < 2; ++i) {
    plan::LayerCost layer;
    layer.name = cat("layer ", i);
    layer.input_bytes = layer.output_bytes = 4;
    layer.modes = {{.saved_bytes = 10, .needs_output = false}};
    table.layers.push_back(layer);
  }
  plan::Pipeline pipeline{.schedule = schedule::make_schedule(schedule::Kind::OneFOneB, 2, 2),
                          .cuts = {0, 1, 2}};
  pipeline.operations = plan::keep_everything(table, pipeline.cuts, 2);
  return plan::lower_pipeline(table, pipeline, plan::holdings_by_rank(table, pipeline), 0);
}

Instruction& find(Program& program, size_t rank, Op op, int32_t micro_batch) {
  for (Instruction& one : program.ranks[rank].instructions) {
    if (one.op == op && one.micro_batch == micro_batch) {
      return one;
    }
  }
  throw std::runtime_error("no such instruction");
}

std::string fault(const Program& program) {
  const Verdict verdict = verify(program);
  return verdict.is_sound() ? "" : verdict.violation->text;
}

}  // namespace

TEST(Waits, NamesTheRanksAndInstructionsOfACircle) {
  Program program = two_ranks();
  EXPECT_EQ(fault(program), "");
  // Rank 0 wants the first gradient before it has sent the activation that leads to it.
  RankProgram& rank = program.ranks[0];
  move_before(rank, places_of(rank, Op::Receive)[0], places_of(rank, Op::Send)[0]);
  EXPECT_EQ(
      fault(program),
      "ranks wait for each other and none can go on: rank 0, instruction 1 (receive of layer 1, "
      "micro-batch 0, from rank 1) waits for rank 1, instruction 4 (send of layer 1, "
      "micro-batch 0, to rank 0); rank 1, instruction 0 (receive of layer 1, micro-batch 0, "
      "from rank 0) waits for rank 0, instruction 2 (send of layer 1, micro-batch 0, to rank "
      "1)");
}

TEST(Waits, RefusesWhatDoesNotMatch) {
  Program program = two_ranks();
  program.ranks[1].values[static_cast<size_t>(find(program, 1, Op::Receive, 1).makes[0])].bytes = 5;
  find(program, 1, Op::Receive, 1).working_bytes = 5;
  EXPECT_EQ(
      fault(program),
      "rank 1, instruction 5 (receive of layer 1, micro-batch 1, from rank 0): expects 5 bytes "
      "of x1.1 where rank 0, instruction 3 (send of layer 1, micro-batch 1, to rank 1) sends 4");

  // One more send than receives, and the reverse.
  program = two_ranks();
  RankProgram& first = program.ranks[0];
  const Instruction again = find(program, 0, Op::Send, 1);
  first.instructions.insert(first.instructions.begin() + places_of(first, Op::Send)[1] + 1, again);
  first.instructions[static_cast<size_t>(places_of(first, Op::Send)[1])].frees.clear();
  EXPECT_EQ(fault(program),
            "rank 0, instruction 4 (send of layer 1, micro-batch 1, to rank 1): rank 1 never "
            "receives x1.1");

  Program other = two_ranks();
  RankProgram& second = other.ranks[1];
  Instruction more = find(other, 1, Op::Receive, 1);
  more.makes = more.frees = {static_cast<ValueId>(second.values.size())};
  second.values.push_back(layer_value(ValueKind::Activation, 1, 1, 4));
  second.instructions.insert(second.instructions.begin() + places_of(second, Op::Receive)[1] + 1,
                             more);
  EXPECT_EQ(fault(other),
            "rank 1, instruction 6 (receive of layer 1, micro-batch 1, from rank 0): rank 0 never "
            "sends x1.1");
}

TEST(Waits, RefusesAnotherOrder) {
  Program program = two_ranks();
  RankProgram& rank = program.ranks[1];
  move_before(rank, places_of(rank, Op::Receive)[1], places_of(rank, Op::Receive)[0]);
  EXPECT_EQ(fault(program),
            "rank 1, instruction 0 (receive of layer 1, micro-batch 1, from rank 0): expects x1.1 "
            "where rank 0, instruction 1 (send of layer 1, micro-batch 0, to rank 1) sends x1.0");
}

TEST(Waits, RefusesTransfersThatAreNone) {
  Program program = two_ranks();
  // A layer's weights are with one rank: another cannot run it.
  RankProgram& first = program.ranks[0];
  const ValueId x1 = find(program, 0, Op::Send, 0).reads[0];
  const ValueId x2 = static_cast<ValueId>(first.values.size());
  first.values.push_back(layer_value(ValueKind::Activation, 2, 0, 4));
  first.instructions.insert(first.instructions.begin() + places_of(first, Op::Send)[0],
                            {.op = Op::Forward,
                             .layer = 1,
                             .micro_batch = 0,
                             .reads = {x1},
                             .makes = {x2},
                             .frees = {x2},
                             .working_bytes = 4});
  EXPECT_EQ(fault(program),
            "rank 0, instruction 9 (squares): the backward of layer 1, micro-batch 0, is missing");

  const std::string send = "rank 0, instruction 1 (send of layer 1, micro-batch 0, to rank ";
  for (const int32_t peer : {0, 2, -1}) {
    program = two_ranks();
    find(program, 0, Op::Send, 0).resource.index = peer;
    EXPECT_EQ(fault(program), cat(send, peer, "): there is no other rank ", peer));
  }
  program = two_ranks();
  find(program, 0, Op::Send, 0).reads = {find(program, 0, Op::Forward, 0).makes[1]};
  EXPECT_EQ(fault(program),
            send + "1): only activations, carried elements and their gradients go between ranks");
  program = two_ranks();
  find(program, 0, Op::Send, 0).reads = find(program, 0, Op::Forward, 0).reads;
  EXPECT_EQ(fault(program),
            send + "1): moves x0.0, which is of another layer, element or micro-batch");
  program = two_ranks();
  find(program, 0, Op::Send, 0).micro_batch = 1;
  EXPECT_EQ(fault(program),
            "rank 0, instruction 1 (send of layer 1, micro-batch 1, to rank 1): moves x1.0, which "
            "is of another layer, element or micro-batch");
  program = two_ranks();
  find(program, 0, Op::Send, 0).reads.clear();
  EXPECT_EQ(fault(program), send + "1): reads 0 values, not 1");
  program = two_ranks();
  find(program, 0, Op::Send, 0).resource = {};
  EXPECT_EQ(
      fault(program),
      "rank 0, instruction 1 (send of layer 1, micro-batch 0, to rank 0): only a send is on a "
      "link, only a receive on an inlet");
}

// The gather of the squares holds up its rank until all have come.
TEST(Waits, NamesAGatherThatHoldsUpWhatOthersWaitFor) {
  Program program = two_ranks();
  RankProgram& rank = program.ranks[1];
  const int32_t gather = places_of(rank, Op::Gather)[0], send = places_of(rank, Op::Send)[1];
  const int32_t drop = places_of(rank, Op::Drop)[0];
  ASSERT_EQ(drop, send + 1);
  const auto begin = rank.instructions.begin();
  std::rotate(begin + send, begin + drop + 1, begin + gather + 1);
  EXPECT_EQ(fault(program),
            "ranks wait for each other and none can go on: rank 0, instruction 6 (receive of layer "
            "1, micro-batch 1, from rank 1) waits for rank 1, instruction 11 (send of layer 1, "
            "micro-batch 1, to rank 0); rank 1, instruction 10 (gather of the squares, over all) "
            "waits for rank 0, instruction 9 (gather of the squares, over all)");
  EXPECT_FALSE(test::has_order(program));
}

// Rank 0 has the first and the last layer. Its send of a gradient frees an activation that rank 1
// receives only after that gradient.
TEST(Waits, WhatFreesASentValueHasNotBegunBeforeItIsReceived) {
  const std::string text =
      R"(penstock-program 2
micro-batches 2
mesh pipeline=2
layer 0 "a" modes=all
layer 1 "b" modes=all
layer 2 "c" modes=all
rank 0 limit=none
given x0.0:1 x0.1:1 t.0:1 t.1:1
forward layer=0 mb=0 keep=all reads=x0.0 makes=x1.0:1,s0.0:1 frees=- on=compute seconds=1 working=2
send layer=1 mb=0 reads=x1.0 on=link:1 seconds=1 working=0 sends=1
receive layer=2 mb=0 makes=x2.0:1 on=inlet:1 working=1
forward layer=2 mb=0 keep=all reads=x2.0 makes=x3.0:1,s2.0:1 frees=- on=compute seconds=1 working=2
loss mb=0 reads=x3.0,t.0 makes=d3.0:1 frees=x3.0,t.0 on=compute seconds=1 working=1
backward layer=2 mb=0 reads=x2.0,s2.0,d3.0 makes=d2.0:1 frees=x2.0,s2.0,d3.0 on=compute seconds=1 working=1
forward layer=0 mb=1 keep=all reads=x0.1 makes=x1.1:1,s0.1:1 frees=- on=compute seconds=1 working=2
send layer=1 mb=1 reads=x1.1 on=link:1 seconds=1 working=0 sends=1
send layer=2 mb=0 reads=d2.0 frees=x1.0,x1.1 on=link:1 seconds=1 working=0 sends=1
receive layer=2 mb=1 makes=x2.1:1 on=inlet:1 working=1
forward layer=2 mb=1 keep=all reads=x2.1 makes=x3.1:1,s2.1:1 frees=- on=compute seconds=1 working=2
loss mb=1 reads=x3.1,t.1 makes=d3.1:1 frees=x3.1,t.1 on=compute seconds=1 working=1
backward layer=2 mb=1 reads=x2.1,s2.1,d3.1 makes=d2.1:1 frees=x2.1,s2.1,d3.1 on=compute seconds=1 working=1
send layer=2 mb=1 reads=d2.1 on=link:1 seconds=1 working=0 sends=1
receive layer=1 mb=0 makes=d1.0:1 frees=d2.0 on=inlet:1 working=1
backward layer=0 mb=0 reads=x0.0,s0.0,d1.0 makes=- frees=x0.0,s0.0,d1.0 on=compute seconds=1 working=0
receive layer=1 mb=1 makes=d1.1:1 frees=d2.1 on=inlet:1 working=1
backward layer=0 mb=1 reads=x0.1,s0.1,d1.1 makes=- frees=x0.1,s0.1,d1.1 on=compute seconds=1 working=0
step on=compute seconds=0 working=0
rank 1 limit=none
receive layer=1 mb=0 makes=x1.0:1 on=inlet:0 working=1
forward layer=1 mb=0 keep=all reads=x1.0 makes=x2.0:1,s1.0:1 frees=- on=compute seconds=1 working=2
send layer=2 mb=0 reads=x2.0 on=link:0 seconds=1 working=0 sends=1
receive layer=2 mb=0 makes=d2.0:1 frees=x2.0 on=inlet:0 working=1
receive layer=1 mb=1 makes=x1.1:1 on=inlet:0 working=1
forward layer=1 mb=1 keep=all reads=x1.1 makes=x2.1:1,s1.1:1 frees=- on=compute seconds=1 working=2
send layer=2 mb=1 reads=x2.1 on=link:0 seconds=1 working=0 sends=1
backward layer=1 mb=0 reads=x1.0,s1.0,d2.0 makes=d1.0:1 frees=x1.0,s1.0,d2.0 on=compute seconds=1 working=1
send layer=1 mb=0 reads=d1.0 on=link:0 seconds=1 working=0 sends=1
receive layer=2 mb=1 makes=d2.1:1 frees=x2.1 on=inlet:0 working=1
backward layer=1 mb=1 reads=x1.1,s1.1,d2.1 makes=d1.1:1 frees=x1.1,s1.1,d2.1 on=compute seconds=1 working=1
send layer=1 mb=1 reads=d1.1 on=link:0 seconds=1 working=0 sends=1
drop frees=d1.0,d1.1
step on=compute seconds=0 working=0
)";
  const Program program = parse_program(text, "p");
  EXPECT_EQ(
      fault(program),
      "ranks wait for each other and none can go on: rank 0, instruction 8 (send of c, "
      "micro-batch 0, to rank 1) waits for rank 1, instruction 4 (receive of b, micro-batch 1, "
      "from rank 0); rank 1, instruction 3 (receive of c, micro-batch 0, from rank 0) waits for "
      "rank 0, instruction 8 (send of c, micro-batch 0, to rank 1)");
  EXPECT_FALSE(test::has_order(program));
  EXPECT_THROW(simulate(program), InternalError);
  // With the activation freed later it goes on.
  Program later = program;
  std::vector<Instruction>& list = later.ranks[0].instructions;
  list[9].frees = std::exchange(list[8].frees, {});
  EXPECT_EQ(fault(later), "");
  EXPECT_TRUE(test::has_order(later));
  EXPECT_NO_THROW(simulate(later));
}

}  // namespace penstock::program
