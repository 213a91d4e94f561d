// Gathers and reduces on the clock: they start when all replicas are there, and overlap with work.
#include <vector>

#include <gtest/gtest.h>

#include "penstock/program/simulate.h"

#include "program/replicated_program.h"

namespace penstock::program {

namespace {

using test::place_of;
using test::replicated_program;

Span span_of(const Program& program, const Timeline& timeline, size_t rank, Op op, int n = 0) {
  return timeline.ranks[rank].spans[place_of(program.ranks[rank], op, n)];
}

}  // namespace

// One rank twice, one micro-batch: forwards 1 s each, loss 1 s, backwards 2 s each; gathers 0.5 s,
// reduces 0.25 s.
TEST(SimulateReplicas, GathersAndReducesOverlapWithWork) {
  const Program program =
      replicated_program(Shard::Parameters, 1, schedule::Kind::OneFOneB, /*micro_batches=*/1);
  const Timeline timeline = simulate(program);
  // The first two gathers (own weights and table) are waited for; the third runs beside the
  // forward.
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, Op::Gather, 0).start, 0);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, Op::Gather, 1).end, 1);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, Op::Forward, 0).start, 1);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, Op::Gather, 2).end, 1.5);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, Op::Forward, 1).start, 2);
  // The loss's bucket is reduced beside the backward of b, and the weights of a are gathered.
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, Op::Reduce, 0).start, 4);
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, Op::Backward, 0).start, 4);
  // Nothing is left to do beside the last reduces: 1 + 1 + 1 + 1 + 2 + 2, and two of 0.25 s.
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, Op::Step).start, 8.5);
  EXPECT_DOUBLE_EQ(timeline.seconds, 8.5);
  EXPECT_DOUBLE_EQ((timeline.ranks[0].busy_seconds.at({ResourceKind::Line, 0})),
                   7 * 0.5 + 4 * 0.25);
}

TEST(SimulateReplicas, ASlowReplicaIsWaitedForAndTheLongestTimeCounts) {
  Program program =
      replicated_program(Shard::Parameters, 1, schedule::Kind::OneFOneB, /*micro_batches=*/1);
  std::vector<Instruction>& slow = program.ranks[1].instructions;
  slow.insert(slow.begin(), {.op = Op::Drop, .seconds = 3});
  program.ranks[1].instructions[place_of(program.ranks[1], Op::Gather)].seconds = 2;
  const Timeline timeline = simulate(program);
  for (const size_t rank : {0u, 1u}) {
    EXPECT_DOUBLE_EQ(span_of(program, timeline, rank, Op::Gather, 0).start, 3);
    EXPECT_DOUBLE_EQ(span_of(program, timeline, rank, Op::Gather, 0).end, 5);
    EXPECT_DOUBLE_EQ(span_of(program, timeline, rank, Op::Gather, 1).end, 5.5);
  }
  EXPECT_DOUBLE_EQ(timeline.seconds, 8.5 + 4.5);
}

TEST(SimulateReplicas, TheStepEndsWithTheLastGather) {
  const Program program =
      replicated_program(Shard::Optimizer, 1, schedule::Kind::OneFOneB, /*micro_batches=*/1);
  const Timeline timeline = simulate(program);
  // Forwards, loss and backwards take 7 s, the reduces of a and of the table follow.
  EXPECT_DOUBLE_EQ(span_of(program, timeline, 0, Op::Step).start, 7.5);
  EXPECT_DOUBLE_EQ(timeline.seconds, 7.5 + 3 * 0.5);
}

// Memory over time has the weights from the start of their gather to the end of their last use.
TEST(SimulateReplicas, MemoryFollowsTheLine) {
  const Program program =
      replicated_program(Shard::Parameters, 1, schedule::Kind::OneFOneB, /*micro_batches=*/1);
  const Timeline timeline = simulate(program);
  EXPECT_EQ(timeline.ranks[0].memory.front().bytes, program.ranks[0].persistent_bytes() + 4 + 1);
  EXPECT_EQ(timeline.ranks[0].memory.back().bytes, program.ranks[0].persistent_bytes());
  EXPECT_LE(timeline.ranks[0].peak_bytes, replay_peak(program.ranks[0]).bytes);
  EXPECT_EQ(timeline.ranks[0].peak_bytes, timeline.ranks[1].peak_bytes);
}

// The squares of all ranks are gathered on compute: whoever comes last is waited for.
TEST(SimulateReplicas, TheSquaresWaitForAllRanks) {
  Program program = replicated_program(Shard::None, 2);
  program.ranks[3].instructions[place_of(program.ranks[3], Op::Squares)].seconds = 5;
  const Timeline timeline = simulate(program);
  const double start = span_of(program, timeline, 3, Op::Squares).end;
  for (const size_t rank : {0u, 1u, 2u, 3u}) {
    EXPECT_DOUBLE_EQ(span_of(program, timeline, rank, Op::Gather).start, start);
    EXPECT_DOUBLE_EQ(span_of(program, timeline, rank, Op::Step).start, start);
  }
  EXPECT_LT(span_of(program, timeline, 0, Op::Squares).end, start);
}

}  // namespace penstock::program
