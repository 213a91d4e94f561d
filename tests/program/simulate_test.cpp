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
    rank.values.push_back(layer_value(ValueKind::Activation, i, 0, bytes));
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
  EXPECT_EQ(timeline.compute_seconds(), 3.5);
  EXPECT_EQ(simulate_one(rank_with(2, {work(1, {0}, {1}, {}, kCopy)})).compute_seconds(), 0);
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
  EXPECT_EQ(rank.memory.back().bytes, 100) << "nothing but weights is left";
}

TEST(Simulate, AgreesWithTheVerifierOnPlannedPrograms) {
  Dice dice(95);
  for (int i = 0; i < 500; ++i) {
    plan::CostTable table = test::rich_chain(dice, dice.between(1, 8), {});
    if (dice.chance(50)) {
      table.layers[0].forward_s = 0;  // instructions that take no time must not change the peak
      table.layers.back().modes[0].backward_s = 0;
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
    EXPECT_EQ(rank.memory.back().bytes, table.held_bytes());
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
  program.mesh.pipeline = 2;
  program.ranks[1].hold({.kind = ValueKind::Fixed, .bytes = 50}, "weights");
  program.ranks[1].hold({.kind = ValueKind::Fixed, .tier = Tier::Host, .bytes = 7}, "staging");
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

namespace {

ValueId hold_gradient(RankProgram& rank) {
  return rank.hold({.kind = ValueKind::GradientSum, .unit = 0, .bytes = 1000});
}

Instruction change(double seconds, ValueId id, Resource resource = kCompute) {
  return {.op = Op::Step, .updates = {id}, .resource = resource, .seconds = seconds};
}

}  // namespace

TEST(Simulate, AReaderWaitsForTheLastChange) {
  RankProgram rank = rank_with(1, {});
  const ValueId gradient = hold_gradient(rank);
  for (const auto list : {&Instruction::updates, &Instruction::sets}) {
    Instruction first = change(3, gradient, kCopy);
    first.updates.clear();
    first.*list = {gradient};
    rank.instructions = {
        first, change(2, gradient, kLink), work(1, {0}, {}), work(1, {gradient}, {})};
    const RankTimeline timeline = simulate_one(rank);
    expect_spans(timeline, {{0, 3}, {3, 5}, {0, 1}, {5, 6}});
    EXPECT_EQ(timeline.memory.back().bytes, 1001) << "what is held stays";
  }
}

TEST(Simulate, AChangeWaitsForReadersOnOtherResources) {
  RankProgram rank = rank_with(1, {});
  const ValueId gradient = hold_gradient(rank);
  rank.instructions = {work(4, {gradient}, {}, {}, kCopy), work(1, {0}, {}), change(2, gradient)};
  expect_spans(simulate_one(rank), {{0, 4}, {0, 1}, {4, 6}});
}

TEST(Simulate, TheTimelineOfMemoryIsOfTheDevice) {
  RankProgram rank = rank_with(3, {work(1, {0}, {1}, {}, kCompute, 0), work(1, {1}, {2}, {1, 2})});
  rank.values[1].tier = Tier::Host;
  rank.values[2].tier = Tier::Disk;
  rank.hold({.kind = ValueKind::Fixed, .tier = Tier::Disk, .bytes = 70}, "cache");
  const RankTimeline timeline = simulate_one(rank);
  expect_memory(timeline, {{0, 1}, {0, 1}, {1, 1}, {1, 1}, {2, 1}});
  EXPECT_EQ(timeline.peak_bytes, 1);
}

namespace {

// Ranks of one group of all, each with value 0 and a gradient, value 1.
Program group_of(std::vector<std::vector<Instruction>> lists) {
  Program program;
  program.mesh.data = static_cast<int32_t>(lists.size());
  program.groups = {comm::along(comm::Axis::Data)};
  for (std::vector<Instruction>& list : lists) {
    RankProgram rank = rank_with(1, std::move(list));
    hold_gradient(rank);
    program.ranks.push_back(std::move(rank));
  }
  return program;
}

constexpr Resource kLine{ResourceKind::Line, 0};
constexpr ValueId kSum = 1;

Instruction reduce(double seconds, Resource resource) {
  return {.op = Op::Reduce,
          .units = {0},
          .group = 0,
          .updates = {kSum},
          .resource = resource,
          .seconds = seconds};
}

}  // namespace

TEST(Simulate, AReduceOnComputeHoldsUpEveryRankUntilAllAreThere) {
  const Timeline timeline =
      simulate(group_of({{work(1, {0}, {}), reduce(2, kCompute), work(1, {0}, {})},
                         {work(4, {0}, {}), reduce(3, kCompute), work(1, {0}, {})}}));
  expect_spans(timeline.ranks[0], {{0, 1}, {4, 7}, {7, 8}});
  expect_spans(timeline.ranks[1], {{0, 4}, {4, 7}, {7, 8}});
  // The rank stands still and computes nothing meanwhile.
  EXPECT_EQ(timeline.ranks[0].busy_seconds.at(kCompute), 1 + 1);
  EXPECT_EQ(timeline.ranks[0].busy_seconds.at(kLine), 3);
}

TEST(Simulate, AReduceOnALineHoldsUpWhoNeedsItAlone) {
  const Timeline timeline = simulate(
      group_of({{work(1, {0}, {}), reduce(2, kLine), work(1, {0}, {}), work(1, {kSum}, {})},
                {work(4, {0}, {}), reduce(3, kLine), work(1, {0}, {}), change(1, kSum)}}));
  expect_spans(timeline.ranks[0], {{0, 1}, {4, 7}, {1, 2}, {7, 8}});
  expect_spans(timeline.ranks[1], {{0, 4}, {4, 7}, {4, 5}, {7, 8}});
  EXPECT_EQ(timeline.ranks[0].busy_seconds.at(kLine), 3);
}

TEST(Simulate, ThoseOfALineRunOneAfterTheOther) {
  const std::vector<Instruction> list{reduce(2, kLine), reduce(3, kLine), work(1, {kSum}, {})};
  const Timeline timeline = simulate(group_of({list, list, list}));
  for (const RankTimeline& rank : timeline.ranks) {
    expect_spans(rank, {{0, 2}, {2, 5}, {5, 6}});
  }
}

TEST(Simulate, WhatALineReadsIsChangedAfterIt) {
  Instruction gather = reduce(2, kLine);
  gather.updates = {};
  gather.reads = {kSum};
  const std::vector<Instruction> list{gather, work(1, {kSum}, {}), change(1, kSum)};
  const Timeline timeline = simulate(group_of({list, list}));
  expect_spans(timeline.ranks[1], {{0, 2}, {0, 1}, {2, 3}});
}

// The groups of two stages do not know of each other.
TEST(Simulate, GroupsOfOneKindMeetAmongThemselves) {
  Program program = group_of({{reduce(1, kCompute)},
                              {work(2, {0}, {}), reduce(1, kCompute)},
                              {work(5, {0}, {}), reduce(1, kCompute)},
                              {reduce(1, kCompute)}});
  program.mesh = {.data = 2, .pipeline = 2};
  const Timeline timeline = simulate(program);
  expect_spans(timeline.ranks[0], {{2, 3}});
  expect_spans(timeline.ranks[3], {{5, 6}});
  EXPECT_EQ(timeline.seconds, 6);
}

TEST(Simulate, RefusesGroupsThatDoNotMeet) {
  const auto text = [](const Program& program) {
    return error_text<InternalError>([&] { simulate(program); });
  };
  Program program = group_of({{reduce(1, kCompute)}, {}});
  EXPECT_NE(text(program).find("ranks wait for each other; verify comes first"), std::string::npos);
  program.ranks[0].instructions[0].resource = kLine;
  EXPECT_NE(text(program).find("a gather or reduce that not all ranks have; verify comes first"),
            std::string::npos);
  program.ranks[0].instructions[0].group = 1;
  EXPECT_NE(text(program).find("there is no group 1; verify comes first"), std::string::npos);
}

}  // namespace penstock::program
