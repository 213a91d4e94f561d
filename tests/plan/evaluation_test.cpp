// The pass from a training step to an evaluation.
#include "penstock/plan/evaluation.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/program/program_text.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"

#include "plan/held_operands.h"
#include "program/random_programs.h"
#include "program/replicated_program.h"

namespace penstock::plan {

namespace {

using program::Op;
using program::Program;
using program::RankProgram;
using program::Shard;
using test::operand_lines;
using test::replicated_program;
using test::replicated_table;

using Lines = std::vector<std::string>;

// Values that are held come first, in the same order with the same names.
void expect_same_holdings(const Program& evaluation, const Program& step) {
  ASSERT_EQ(evaluation.ranks.size(), step.ranks.size());
  EXPECT_EQ(evaluation.units, step.units);
  EXPECT_EQ(evaluation.shard, step.shard);
  for (size_t i = 0; i < step.ranks.size(); ++i) {
    const RankProgram& ours = evaluation.ranks[i];
    const RankProgram& theirs = step.ranks[i];
    EXPECT_EQ(ours.persistent, theirs.persistent);
    EXPECT_EQ(ours.labels, theirs.labels);
    for (const program::ValueId id : theirs.persistent) {
      EXPECT_EQ(ours.value(id), theirs.value(id));
    }
  }
}

TEST(Evaluation, OfOneRankIsForwardsAndTheLoss) {
  const Program step = replicated_program(Shard::None);
  const Program evaluation = write_evaluation(step, replicated_table());
  EXPECT_EQ(operand_lines(evaluation, 0),
            (Lines{"forward 0.0: reads m0 m2", "forward 1.0: reads m1", "loss.0: reads m2"}));
  expect_same_holdings(evaluation, step);
}

TEST(Evaluation, GathersOneUseAheadWhereParametersAreSharded) {
  const Program step = replicated_program(Shard::Parameters);
  const Program evaluation = write_evaluation(step, replicated_table());
  EXPECT_EQ(operand_lines(evaluation, 0),
            (Lines{"gather [0].0 over data: reads m0, makes p0.0",
                   "gather [2].0 over data: reads m2, makes p2.0",
                   "gather [1].0 over data: reads m1, makes p1.0",
                   "forward 0.0: reads p0.0 p2.0, frees p0.0 p2.0",
                   "gather [2].0 over data: reads m2, makes p2.0#2",
                   "forward 1.0: reads p1.0, frees p1.0",
                   "loss.0: reads p2.0#2, frees p2.0#2"}));
  expect_same_holdings(evaluation, step);
  // Of each replica, what it sends in a gather of the step.
  const auto sent = [&](size_t rank) {
    return evaluation.ranks[rank]
        .instructions[test::place_of(evaluation.ranks[rank], Op::Gather)]
        .sent_bytes;
  };
  EXPECT_EQ(sent(0), 7);
  EXPECT_EQ(sent(1), 8);
}

TEST(Evaluation, OfAPipelineSendsAndDrops) {
  const Program evaluation =
      write_evaluation(replicated_program(Shard::None, 2), replicated_table(), 2);
  const auto subjects = [&](size_t rank) {
    Lines lines;
    for (const program::Instruction& one : evaluation.ranks[rank].instructions) {
      lines.push_back(test::subject_of(evaluation, one));
    }
    return lines;
  };
  EXPECT_EQ(subjects(0), (Lines{"forward 0.0", "send 1.0", "forward 0.1", "send 1.1", "drop"}));
  EXPECT_EQ(
      subjects(2),
      (Lines{"receive 1.0", "forward 1.0", "loss.0", "receive 1.1", "forward 1.1", "loss.1"}));
  // The first message goes with the second.
  const RankProgram& first = evaluation.ranks[0];
  EXPECT_EQ(first.instructions[test::place_of(first, Op::Send, 1)].frees,
            (std::vector{test::value_named(first, "x1.0")}));
}

TEST(Evaluation, HoldsNoMoreThanItsStep) {
  for (const Shard shard : program::kShards) {
    for (const int32_t stages : {1, 2}) {
      const Program step = replicated_program(shard, stages);
      const program::Verdict one = program::verify(write_evaluation(step, replicated_table()));
      const program::Verdict whole = program::verify(step);
      ASSERT_TRUE(one.is_sound() && whole.is_sound());
      for (size_t rank = 0; rank < step.ranks.size(); ++rank) {
        EXPECT_LE(one.peaks[rank].bytes, whole.peaks[rank].bytes) << rank;
      }
    }
  }
}

// Interleaved, V-shaped, asynchronous: whatever ranks have which layers.
TEST(Evaluation, IsSoundForRanksOfAnySchedule) {
  test::Dice dice(17);
  for (int i = 0; i < 300; ++i) {
    const Program evaluation = test::evaluation_program(dice);
    const program::Verdict verdict = program::verify(evaluation);
    ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
    EXPECT_NO_THROW(program::simulate(evaluation));
    EXPECT_EQ(program::parse_program(program::format_program(evaluation), "text"), evaluation);
    // Of the activation, not of the gradient that the step sends back over the same border.
    for (const RankProgram& rank : evaluation.ranks) {
      for (const program::Instruction& one : rank.instructions) {
        if (one.op == Op::Send) {
          EXPECT_DOUBLE_EQ(one.seconds, 0.5 + static_cast<double>(one.sent_bytes) / 2);
        }
      }
    }
  }
}

}  // namespace

}  // namespace penstock::plan
