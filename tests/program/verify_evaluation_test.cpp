// What verify() demands of an evaluation: each rule broken once.
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/plan/evaluation.h"
#include "penstock/program/program_json.h"
#include "penstock/program/program_text.h"
#include "penstock/program/verify.h"

#include "program/replicated_program.h"

namespace penstock::program {

namespace {

using test::fault_of;
using test::place_of;
using test::value_named;

Program evaluation(Shard shard, int32_t stages = 1, int32_t micro_batches = 2) {
  return plan::write_evaluation(
      test::replicated_program(shard, stages), test::replicated_table(), micro_batches);
}

// After a change of rank 0.
std::string fault_after(Program program, const std::function<void(RankProgram&)>& change) {
  EXPECT_EQ(fault_of(program), "");
  change(program.ranks[0]);
  return fault_of(program);
}

void erase(RankProgram& rank, size_t at) {
  rank.instructions.erase(rank.instructions.begin() + static_cast<int64_t>(at));
}
Instruction& at(RankProgram& rank, Op op, int n = 0) {
  return rank.instructions[place_of(rank, op, n)];
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(VerifyEvaluation, AcceptsOneOfAnyRanks) {
  for (const Shard shard : kShards) {
    for (const int32_t stages : {1, 2}) {
      EXPECT_EQ(fault_of(evaluation(shard, stages)), "") << shard_name(shard) << " " << stages;
    }
  }
}

TEST(VerifyEvaluation, IsReadBack) {
  for (const Shard shard : kShards) {
    const Program program = evaluation(shard, 2);
    EXPECT_EQ(parse_program(format_program(program), "text"), program);
    EXPECT_EQ(parse_program_json(program_json(program), "json"), program);
    EXPECT_TRUE(has(format_program(program), "\nupdates 0 weights=kept\n"));
  }
}

TEST(VerifyEvaluation, RefusesAMissingLoss) {
  const std::string fault = fault_after(evaluation(Shard::None), [](RankProgram& rank) {
    // What it would have read is freed all the same.
    Instruction& loss = at(rank, Op::Loss, 1);
    loss = {.op = Op::Drop, .frees = loss.frees};
  });
  EXPECT_EQ(fault, "the program: the loss of micro-batch 1 is missing");
}

TEST(VerifyEvaluation, RefusesALossThatIsRunTwice) {
  const std::string fault = fault_after(evaluation(Shard::None), [](RankProgram& rank) {
    const size_t place = place_of(rank, Op::Loss);
    Instruction first = rank.instructions[place];
    first.frees.clear();
    rank.instructions.insert(rank.instructions.begin() + static_cast<int64_t>(place), first);
  });
  EXPECT_TRUE(has(fault, "a second loss of this micro-batch")) << fault;
}

TEST(VerifyEvaluation, RefusesAGradient) {
  const std::string fault = fault_after(evaluation(Shard::None), [](RankProgram& rank) {
    rank.values.push_back(layer_value(ValueKind::Gradient, 2, 0, 0));
    const auto made = static_cast<ValueId>(rank.values.size() - 1);
    at(rank, Op::Loss).makes = {made};
    at(rank, Op::Loss).frees.push_back(made);
  });
  EXPECT_TRUE(has(fault, "makes 1 values, not 0")) << fault;
}

TEST(VerifyEvaluation, RefusesAnyChangeOfWhatIsHeld) {
  for (const char* name : {"m0", "a0", "o0", "a2"}) {
    const std::string fault = fault_after(evaluation(Shard::None), [&](RankProgram& rank) {
      at(rank, Op::Loss).sets = {value_named(rank, name)};
    });
    EXPECT_TRUE(has(fault, std::string("changes ") + name + "; an evaluation changes nothing"))
        << fault;
  }
  const std::string fault = fault_after(evaluation(Shard::None), [](RankProgram& rank) {
    at(rank, Op::Forward).updates = {value_named(rank, "m0")};
  });
  EXPECT_TRUE(has(fault, "changes m0; an evaluation changes nothing")) << fault;
}

TEST(VerifyEvaluation, RefusesAStepAndItsSquares) {
  for (const Op op : {Op::Backward,
                      Op::BackwardInput,
                      Op::BackwardWeight,
                      Op::Stash,
                      Op::Reduce,
                      Op::Add,
                      Op::Squares,
                      Op::Decide,
                      Op::Step}) {
    const std::string fault = fault_after(evaluation(Shard::None), [&](RankProgram& rank) {
      rank.instructions.push_back({.op = op});
    });
    EXPECT_TRUE(has(fault, "an evaluation has no " + std::string(op_name(op)))) << fault;
  }
}

TEST(VerifyEvaluation, RefusesToKeepWhatNoBackwardTakes) {
  const std::string fault = fault_after(evaluation(Shard::None),
                                        [](RankProgram& rank) { at(rank, Op::Forward).keep = 0; });
  EXPECT_TRUE(has(fault, "an evaluation keeps nothing for a backward")) << fault;
}

TEST(VerifyEvaluation, AsksForGatheredWeights) {
  std::string fault = fault_after(evaluation(Shard::Parameters), [](RankProgram& rank) {
    Instruction& forward = at(rank, Op::Forward);
    std::erase(forward.reads, value_named(rank, "p0.0"));
  });
  EXPECT_TRUE(has(fault, "reads no gathered weights of a")) << fault;
  // Where weights are whole there is nothing to gather, and nothing has moved.
  fault = fault_after(evaluation(Shard::Optimizer), [](RankProgram& rank) {
    rank.instructions.push_back(
        {.op = Op::Gather, .units = {0}, .group = 0, .resource = {ResourceKind::Line, 0}});
  });
  EXPECT_TRUE(has(fault, "comes before the step")) << fault;
}

TEST(VerifyEvaluation, MatchesWhatIsSent) {
  const std::string fault = fault_after(evaluation(Shard::None, 2), [](RankProgram& rank) {
    const ValueId sent = at(rank, Op::Send, 1).reads[0];
    erase(rank, place_of(rank, Op::Send, 1));
    at(rank, Op::Drop).frees = {value_named(rank, "x1.0"), sent};
  });
  EXPECT_NE(fault, "");
}

TEST(VerifyEvaluation, HoldsItToTheLimit) {
  Program program = evaluation(Shard::None);
  program.ranks[0].limit_bytes = verify(program).peaks[0].bytes;
  EXPECT_EQ(fault_of(program), "");
  --program.ranks[0].limit_bytes;
  EXPECT_TRUE(has(fault_of(program), "1 over the limit")) << fault_of(program);
}

TEST(VerifyEvaluation, ATrainingStepHasNoLossWithoutGradient) {
  const std::string fault =
      fault_after(test::replicated_program(Shard::None),
                  [](RankProgram& rank) { at(rank, Op::Loss).makes.clear(); });
  EXPECT_TRUE(has(fault, "makes 0 values, not 1")) << fault;
}

}  // namespace

}  // namespace penstock::program
