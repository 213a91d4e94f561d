// Records of several ranks as one timeline: the same step of all, each from where it began.
#include "penstock/train/rank_records.h"

#include <gtest/gtest.h>

#include "penstock/comm/local.h"

namespace penstock::train {

namespace {

// Of a rank with so many instructions, each of one second.
StepRecord record(size_t instructions, double began_s, double seconds) {
  StepRecord made{.timeline = {.seconds = seconds, .ranks = {{}}}, .began_s = began_s};
  program::RankTimeline& rank = made.timeline.ranks.front();
  rank.peak_bytes = 40;
  rank.peak_instruction = 1;
  rank.memory.push_back({0, 10});
  for (size_t i = 0; i < instructions; ++i) {
    const auto start = static_cast<double>(i);
    rank.spans.push_back({static_cast<int32_t>(i), start, start + 1});
    rank.memory.push_back({start, 40});
    rank.memory.push_back({start + 1, 20});
  }
  return made;
}

program::Program program_of(const std::vector<size_t>& instructions) {
  program::Program program;
  for (const size_t count : instructions) {
    program.ranks.emplace_back();
    program.ranks.back().instructions.resize(count);
  }
  return program;
}

}  // namespace

TEST(RankRecords, PutTogetherTheStepThatRankZeroChose) {
  const program::Program program = program_of({2, 3, 1});
  comm::run_local(3, [&](comm::Group& group) {
    // Of median length is the second at rank 0, and another at the others.
    const std::vector<double> lengths =
        group.rank() == 0 ? std::vector<double>{9, 5, 1} : std::vector<double>{5, 9, 1};
    const std::vector<double> late{0.5, 0.25, 0};
    StepRecords records;
    for (size_t step = 0; step < 3; ++step) {
      const size_t rank = static_cast<size_t>(group.rank());
      const double began = 1000.0 * static_cast<double>(step) + late[rank];
      StepRecord one = record(program.ranks[rank].instructions.size(), began, lengths[step]);
      one.timeline.ranks.front().peak_bytes += static_cast<int64_t>(step);
      records.add(one);
    }
    const std::optional<program::Timeline> timeline = gather_step(records, program, group);
    if (group.rank() > 0) {
      EXPECT_FALSE(timeline.has_value());
      return;
    }
    ASSERT_TRUE(timeline.has_value());
    ASSERT_EQ(timeline->ranks.size(), 3U);
    EXPECT_EQ(timeline->seconds, 3.25);
    for (size_t rank = 0; rank < 3; ++rank) {
      const program::RankTimeline& one = timeline->ranks[rank];
      const size_t count = program.ranks[rank].instructions.size();
      EXPECT_EQ(one.peak_bytes, 41);
      EXPECT_EQ(one.peak_instruction, 1);
      ASSERT_EQ(one.spans.size(), count);
      EXPECT_EQ(one.spans[0].start, late[rank]);
      EXPECT_EQ(one.spans.back().instruction, static_cast<int32_t>(count) - 1);
      EXPECT_EQ(one.spans.back().end, static_cast<double>(count) + late[rank]);
      ASSERT_EQ(one.memory.size(), 2 * count + 1);
      EXPECT_EQ(one.memory[0].seconds, 0);
      EXPECT_EQ(one.memory[0].bytes, 10);
      EXPECT_EQ(one.memory[1].seconds, late[rank]);
      EXPECT_EQ(one.memory[1].bytes, 40);
      EXPECT_EQ(one.memory.back().bytes, 20);
    }
    EXPECT_EQ(timeline->ranks[1].compute_seconds(), 3);
  });
}

TEST(RankRecords, OfOneRankAreItsOwn) {
  const program::Program program = program_of({2});
  comm::run_local(1, [&](comm::Group& group) {
    StepRecords records;
    EXPECT_FALSE(gather_step(records, program, group).has_value());
    records.add(record(2, 77, 2));
    const std::optional<program::Timeline> timeline = gather_step(records, program, group);
    ASSERT_TRUE(timeline.has_value());
    EXPECT_EQ(timeline->seconds, 2);
    EXPECT_EQ(timeline->ranks[0].spans[0].start, 0);
  });
}

}  // namespace penstock::train
