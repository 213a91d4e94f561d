// Times and memory of programs whose timeline can be drawn by hand.
#include "penstock/program/simulate.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/plan/lower.h"
#include "penstock/plan/rotor.h"
#include "penstock/program/verify.h"

#include "plan/random_chains.h"
#include "program/small_program.h"
#include "support/error_text.h"

namespace penstock::program {

namespace {

using test::Dice;
using test::error_text;

constexpr Resource kCompute{};
constexpr Resource kCopy{ResourceKind::Copy, 0};
constexpr Resource kLink{ResourceKind::Link, 1};

// The simulator looks at values, resources and times alone, so the operation is always the same.
Instruction work(double seconds,
                 std::vector<ValueId> reads,
                 std::vector<ValueId> makes,
                 std::vector<ValueId> frees = {},
                 Resource resource = kCompute,
                 int64_t working_bytes = 0) {
  return {.op = Op::Forward,
          .layer = 0,
          .micro_batch = 0,
          .reads = std::move(reads),
          .makes = std::move(makes),
          .frees = std::move(frees),
          .resource = resource,
          .seconds = seconds,
          .working_bytes = working_bytes};
}

// Values of 1, 10, 100, ... bytes, of which the first is given: a sum shows which are live.
RankProgram rank_with(int values, std::vector<Instruction> instructions) {
  RankProgram rank;
  int64_t bytes = 1;
  for (int i = 0; i < values; ++i, bytes *= 10) {
    rank.values.push_back({ValueKind::Activation, i, 0, bytes});
  }
  rank.given = {0};
  rank.instructions = std::move(instructions);
  return rank;
}

RankTimeline simulate_one(const RankProgram& rank) {
  Program program;
  program.ranks = {rank};
  return simulate(program).ranks[0];
}

void expect_spans(const RankTimeline& timeline,
                  const std::vector<std::pair<double, double>>& spans) {
  ASSERT_EQ(timeline.spans.size(), spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(timeline.spans[i].instruction, static_cast<int32_t>(i));
    EXPECT_EQ(timeline.spans[i].start, spans[i].first) << "instruction " << i;
    EXPECT_EQ(timeline.spans[i].end, spans[i].second) << "instruction " << i;
  }
}

void expect_memory(const RankTimeline& timeline,
                   const std::vector<std::pair<double, int64_t>>& points) {
  std::vector<std::pair<double, int64_t>> found;
  for (const MemoryPoint& point : timeline.memory) {
    found.emplace_back(point.seconds, point.bytes);
  }
  EXPECT_EQ(found, points);
}

}  // namespace

TEST(Simulate, OneResourceRunsOneInstructionAfterTheOther) {
  const RankTimeline timeline = simulate_one(rank_with(
      3, {work(1, {0}, {1}, {}, kCompute, 10), work(2.5, {1}, {2}, {0, 1}, kCompute, 120)}));
  expect_spans(timeline, {{0, 1}, {1, 3.5}});
  // Start and end of each; the second works with more than it leaves.
  expect_memory(timeline, {{0, 1}, {0, 11}, {1, 11}, {1, 131}, {3.5, 100}});
  EXPECT_EQ(timeline.peak_bytes, 131);
  EXPECT_EQ(timeline.peak_instruction, 1);
  EXPECT_EQ(timeline.busy_seconds.at(kCompute), 3.5);
}

TEST(Simulate, ResourcesOverlapWhereNoValueJoinsThem) {
  const RankTimeline timeline = simulate_one(rank_with(
      4, {work(4, {0}, {1}), work(3, {0}, {2}, {}, kCopy), work(5, {0}, {3}, {}, kLink)}));
  expect_spans(timeline, {{0, 4}, {0, 3}, {0, 5}});
  EXPECT_EQ(timeline.busy_seconds.at(kCompute), 4);
  EXPECT_EQ(timeline.busy_seconds.at(kCopy), 3);
  EXPECT_EQ(timeline.busy_seconds.at(kLink), 5);
}

TEST(Simulate, AReaderWaitsForTheValueOfAnotherResource) {
  const RankTimeline timeline =
      simulate_one(rank_with(5,
                             {work(2, {0}, {1}),
                              work(3, {1}, {2}, {}, kCopy),     // waits for compute
                              work(1, {1}, {3}),                // goes on meanwhile
                              work(1, {2, 3}, {4}, {2, 3})}));  // waits for the copy
  expect_spans(timeline, {{0, 2}, {2, 5}, {2, 3}, {5, 6}});
}

TEST(Simulate, AnInstructionWaitsForWhatItFrees) {
  const RankTimeline timeline =
      simulate_one(rank_with(2, {work(3, {0}, {1}, {}, kCopy), {.op = Op::Drop, .frees = {1}}}));
  expect_spans(timeline, {{0, 3}, {3, 3}});
}

TEST(Simulate, AValueThatIsMadeAndFreedAtOnceIsNotWaitedFor) {
  const RankTimeline timeline = simulate_one(rank_with(2, {work(3, {0}, {1}, {1}, kCompute, 10)}));
  expect_spans(timeline, {{0, 3}});
  expect_memory(timeline, {{0, 1}, {0, 11}, {3, 1}});
}

TEST(Simulate, EnginesAndPeersAreResourcesOfTheirOwn) {
  const Resource other_copy{ResourceKind::Copy, 1}, other_link{ResourceKind::Link, 2};
  const RankTimeline timeline = simulate_one(rank_with(6,
                                                       {work(2, {0}, {1}, {}, kCopy),
                                                        work(2, {0}, {2}, {}, other_copy),
                                                        work(2, {0}, {3}, {}, kCopy),
                                                        work(2, {0}, {4}, {}, kLink),
                                                        work(2, {0}, {5}, {}, other_link)}));
  expect_spans(timeline, {{0, 2}, {0, 2}, {2, 4}, {0, 2}, {0, 2}});
  EXPECT_EQ(timeline.busy_seconds.size(), 4u);
}

TEST(Simulate, OneResourceKeepsTheOrderOfTheList) {
  // The second copy could go first, but an engine does not look ahead.
  const RankTimeline timeline = simulate_one(rank_with(
      4, {work(3, {0}, {1}), work(1, {1}, {2}, {}, kCopy), work(1, {0}, {3}, {}, kCopy)}));
  expect_spans(timeline, {{0, 3}, {3, 4}, {4, 5}});
}

TEST(Simulate, OverlappingInstructionsAddUpInMemory) {
  const RankTimeline timeline = simulate_one(
      rank_with(3, {work(4, {0}, {1}, {}, kCompute, 10), work(2, {0}, {2}, {}, kCopy, 100)}));
  expect_memory(timeline, {{0, 1}, {0, 11}, {0, 111}, {2, 111}, {4, 111}});
  EXPECT_EQ(timeline.peak_bytes, 111);
  EXPECT_EQ(timeline.peak_instruction, 1);
}

TEST(Simulate, WhatEndsMakesRoomForWhatStarts) {
  // The first frees at the moment at which the second takes: they are never there together.
  const RankTimeline timeline = simulate_one(rank_with(
      3, {work(1, {0}, {1}, {0}, kCompute, 1000), work(1, {1}, {2}, {1}, kCompute, 500)}));
  EXPECT_EQ(timeline.peak_bytes, 1001);
  expect_memory(timeline, {{0, 1}, {0, 1001}, {1, 10}, {1, 510}, {2, 100}});
}

TEST(Simulate, InstructionsWithoutDurationKeepTheirOrder) {
  const RankTimeline timeline = simulate_one(rank_with(4,
                                                       {work(1, {0}, {1}, {}, kCompute, 10),
                                                        work(0, {1}, {2}, {}, kCompute, 100),
                                                        work(0, {2}, {3}, {2}, kCompute, 1000),
                                                        work(0, {3}, {}, {3}),
                                                        work(2, {1}, {}, {0, 1})}));
  expect_spans(timeline, {{0, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 3}});
  expect_memory(timeline,
                {{0, 1},
                 {0, 11},
                 {1, 11},
                 {1, 111},
                 {1, 111},
                 {1, 1111},
                 {1, 1011},
                 {1, 1011},
                 {1, 11},
                 {1, 11},
                 {3, 0}});
  EXPECT_EQ(timeline.peak_bytes, 1111);
  EXPECT_EQ(timeline.peak_instruction, 2);
}

TEST(Simulate, AProgramWithoutDurationsStillHasItsPeak) {
  Program program = test::small_program();
  for (Instruction& instruction : program.ranks[0].instructions) {
    instruction.seconds = 0;
  }
  const Timeline timeline = simulate(program);
  EXPECT_EQ(timeline.seconds, 0);
  EXPECT_EQ(timeline.ranks[0].peak_bytes, 132);
  EXPECT_EQ(timeline.ranks[0].peak_instruction, test::kBackwardA);
}

TEST(Simulate, TheSmallProgramTakesTheSumOfItsSeconds) {
  const Timeline timeline = simulate(test::small_program());
  EXPECT_EQ(timeline.seconds, 8);
  const RankTimeline& rank = timeline.ranks[0];
  EXPECT_EQ(rank.peak_bytes, 132);
  EXPECT_EQ(rank.peak_instruction, test::kBackwardA);
  EXPECT_EQ(rank.memory.front().bytes, 111);
  EXPECT_EQ(rank.memory.back().bytes, 100) << "nothing but parameters is left";
}

TEST(Simulate, AgreesWithTheVerifierOnPlannedPrograms) {
  Dice dice(95);
  for (int i = 0; i < 500; ++i) {
    plan::CostTable table = test::rich_chain(dice, dice.between(1, 8), {});
    if (dice.chance(50)) {
      table.layers[0].forward_s = 0;  // instructions that take no time must not change the peak
      table.layers.back().ways[0].backward_s = 0;
    }
    const int64_t least = plan::solve_rotor(table, 0, {.threads = 1}).least_bytes;
    const int64_t limit = dice.between(least, std::max(least, test::keep_all_bytes(table)));
    const plan::Operations operations = plan::solve_rotor(table, limit, {.threads = 1}).operations;
    const int32_t micro_batches = static_cast<int32_t>(dice.between(1, 3));
    const Program program = plan::lower(table, operations, micro_batches, 0);
    const Timeline timeline = simulate(program);
    const RankTimeline& rank = timeline.ranks[0];
    const Verdict verdict = verify(program);
    ASSERT_TRUE(verdict.is_sound());
    EXPECT_EQ(rank.peak_bytes, verdict.peaks[0].bytes);
    EXPECT_EQ(rank.peak_instruction, verdict.peaks[0].instruction);
    EXPECT_EQ(rank.peak_bytes, replay_peak(program.ranks[0]).bytes);
    EXPECT_EQ(timeline.seconds,
              table.clear_s + table.step_s + micro_batches * plan::seconds_of(table, operations));
    EXPECT_EQ(rank.memory.back().bytes, table.resident_bytes());
    EXPECT_TRUE(std::is_sorted(
        rank.memory.begin(), rank.memory.end(), [](const MemoryPoint& a, const MemoryPoint& b) {
          return a.seconds < b.seconds;
        }));
  }
}

TEST(Simulate, RanksRunSideBySide) {
  Program program;
  program.ranks = {rank_with(2, {work(3, {0}, {1})}),
                   rank_with(2, {work(1, {0}, {1}), work(4, {1}, {}, {1})})};
  program.ranks[1].residents = {{"parameters", 50}};
  const Timeline timeline = simulate(program);
  EXPECT_EQ(timeline.seconds, 5) << "the slower rank's end";
  ASSERT_EQ(timeline.ranks.size(), 2u);
  expect_spans(timeline.ranks[0], {{0, 3}});
  expect_spans(timeline.ranks[1], {{0, 1}, {1, 5}});
  EXPECT_EQ(timeline.ranks[0].memory.front().bytes, 1);
  EXPECT_EQ(timeline.ranks[1].memory.front().bytes, 51);
}

TEST(Simulate, AnEmptyProgramTakesNoTime) {
  EXPECT_EQ(simulate(Program{}).seconds, 0);
  const RankTimeline timeline = simulate_one(rank_with(1, {}));
  EXPECT_EQ(timeline.peak_bytes, 1);
  EXPECT_EQ(timeline.peak_instruction, -1);
}

TEST(Simulate, RefusesProgramsThatUseWhatIsNotThere) {
  const std::string text = error_text<InternalError>([] {
    simulate_one(rank_with(3, {work(1, {0}, {1}), work(1, {2}, {})}));
  });
  EXPECT_NE(text.find("instruction 1 uses a value that nothing has made"), std::string::npos)
      << text;
  // To free it is to use it.
  error_text<InternalError>([] { simulate_one(rank_with(2, {work(1, {0}, {}, {1})})); });
}

TEST(Simulate, RefusesAnInstructionThatReadsWhatItMakes) {
  EXPECT_THROW(simulate_one(rank_with(2, {work(1, {0, 1}, {1})})), InternalError);
}

TEST(Simulate, RefusesProgramsThatUseWhatIsGone) {
  EXPECT_THROW(simulate_one(rank_with(2, {work(1, {0}, {1}, {0}), work(1, {0}, {})})),
               InternalError);
  EXPECT_THROW(simulate_one(rank_with(2, {work(1, {0}, {}, {0}), work(1, {}, {}, {0})})),
               InternalError);
  EXPECT_THROW(simulate_one(rank_with(2, {work(1, {0}, {1}), work(1, {0}, {1})})), InternalError);
}

TEST(Simulate, AValueIsNotFreedUnderAnotherResourceThatReadsIt) {
  // The copy of value 0 runs until 5; whoever frees it must not do so at 1.
  const RankTimeline timeline = simulate_one(
      rank_with(3, {work(5, {0}, {1}, {}, kCopy, 10), work(1, {}, {2}, {0}, kCompute, 100)}));
  EXPECT_EQ(timeline.spans[1].start, 5);
  EXPECT_EQ(timeline.spans[1].end, 6);
}

}  // namespace penstock::program
