// Every refusal of the verifier, each by a small program that is broken in one place.
#include "penstock/program/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "program/small_program.h"

namespace penstock::program {

namespace {

using namespace penstock::test;  // NOLINT: the names of the small program's values and lines

class Verify : public testing::Test {
 protected:
  Instruction& line(int index) { return rank().instructions[static_cast<size_t>(index)]; }
  Value& value(ValueId id) { return rank().values[static_cast<size_t>(id)]; }
  RankProgram& rank() { return program_.ranks[0]; }

  ValueId add_value(const Value& one) {
    rank().values.push_back(one);
    return static_cast<ValueId>(rank().values.size() - 1);
  }
  void insert(int before, Instruction instruction) {
    rank().instructions.insert(rank().instructions.begin() + before, std::move(instruction));
  }
  void erase(int index) { rank().instructions.erase(rank().instructions.begin() + index); }

  // The text after the instruction at fault, which must be number `index` (-1: none in particular).
  std::string refusal(int index) {
    const Verdict verdict = verify(program_);
    if (verdict.is_sound()) {
      ADD_FAILURE() << "accepted";
      return "";
    }
    EXPECT_TRUE(verdict.peaks.empty());
    EXPECT_EQ(verdict.violation->rank, 0);
    EXPECT_EQ(verdict.violation->instruction, index) << verdict.violation->text;
    EXPECT_EQ(verdict.violation->text.find('\n'), std::string::npos);
    std::string where = "the program: ";
    if (index >= 0) {
      where =
          "instruction " + std::to_string(index) + " (" + describe(program_, line(index)) + "): ";
    }
    EXPECT_EQ(verdict.violation->text.substr(0, where.size()), where);
    return verdict.violation->text.substr(std::min(where.size(), verdict.violation->text.size()));
  }

  // Where it does not matter at which instruction.
  std::string refusal_anywhere() { return verify(program_).violation.value_or(Violation{}).text; }

  Program program_ = small_program();
};

}  // namespace

TEST_F(Verify, AcceptsTheSmallProgramAndTellsItsPeak) {
  const Verdict verdict = verify(program_);
  ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
  ASSERT_EQ(verdict.peaks.size(), 1u);
  // Weights, x0, a's output and state, the gradient, and what the last backward works with.
  EXPECT_EQ(verdict.peaks[0].bytes, 100 + 10 + 4 + 6 + 4 + 8);
  EXPECT_EQ(verdict.peaks[0].instruction, kBackwardA);
  EXPECT_EQ(replay_peak(rank()).bytes, 132);
  EXPECT_EQ(replay_peak(rank()).instruction, kBackwardA);
  EXPECT_EQ(verdict.peaks[0].tier_bytes, (std::array<int64_t, kNumTiers>{132, 0, 0}));
}

TEST_F(Verify, NamesInstructionLayerAndMicroBatch) {
  line(kForwardB).reads = {};
  EXPECT_EQ(verify(program_).violation->text,
            "instruction 1 (forward of b, micro-batch 0): does not read x1.0");
}

TEST_F(Verify, AcceptsWhatIsOnlyUnusual) {
  // Values dropped apart, even after the step.
  line(kBackwardA).frees = {kX1, kS0, kD1};
  insert(kStep + 1, {.op = Op::Drop, .frees = {kX0}});
  EXPECT_TRUE(verify(program_).is_sound());
}

TEST_F(Verify, AcceptsAForwardRunTwice) {
  const ValueId again = add_value(layer_value(ValueKind::Activation, 1, 0, 4));
  insert(kForwardB,
         {.op = Op::Forward,
          .layer = 0,
          .micro_batch = 0,
          .reads = {kX0},
          .makes = {again},
          .frees = {again},
          .working_bytes = 4});
  EXPECT_TRUE(verify(program_).is_sound());
}

TEST_F(Verify, RefusesValuesWithImpossibleNumbers) {
  value(kX1).bytes = -1;
  EXPECT_EQ(refusal(-1), "x1.0 has -1 bytes");
}

TEST_F(Verify, RefusesValuesOfNoLayerOrMicroBatch) {
  const std::string rest = " belongs to no layer, unit, micro-batch or update of the program";
  const Program sound = program_;
  value(kX2).layer = 3;
  EXPECT_EQ(refusal(-1), "x3.0" + rest);
  program_ = sound;
  value(kX2).layer = -1;
  EXPECT_EQ(refusal(-1), "x-1.0" + rest);
  program_ = sound;
  value(kS1).layer = 2;  // the loss keeps nothing
  EXPECT_EQ(refusal(-1), "s2.0" + rest);
  program_ = sound;
  value(kD1).micro_batch = 1;
  EXPECT_EQ(refusal(-1), "d1.1" + rest);
  program_ = sound;
  value(kD1).micro_batch = -1;
  EXPECT_EQ(refusal(-1), "d1.-1" + rest);
}

TEST_F(Verify, RefusesWrongGivenValues) {
  const Program sound = program_;
  rank().given.push_back(99);
  EXPECT_EQ(refusal(-1), "there is no value number 99 to be given");
  program_ = sound;
  rank().given.push_back(-1);
  EXPECT_EQ(refusal(-1), "there is no value number -1 to be given");
  program_ = sound;
  rank().given.push_back(kX0);
  EXPECT_EQ(refusal(-1), "x0.0 is given twice");
}

TEST_F(Verify, RefusesAGivenGradient) {
  // It would stand in for the loss's, which nobody would use.
  const ValueId given = add_value(layer_value(ValueKind::Gradient, 2, 0, 2));
  rank().given.push_back(given);
  line(kLoss).frees.push_back(kD2);
  line(kBackwardB).reads = {kX1, kS1, given, kX2};
  line(kBackwardB).frees = {kX2, kS1, given};
  EXPECT_EQ(refusal(-1), "d2.0#2 is given; only inputs and targets are there when a step begins");
}

TEST_F(Verify, RefusesAGivenState) {
  // No forward of this step made it, so that nobody can say in which mode it was saved.
  const ValueId given = add_value(layer_value(ValueKind::Saved, 1, 0, 3));
  rank().given.push_back(given);
  line(kForwardB).frees.push_back(kS1);
  line(kBackwardB).reads = {kX1, given, kD2, kX2};
  line(kBackwardB).frees = {kX2, given, kD2};
  EXPECT_EQ(refusal(-1), "s1.0#2 is given; only inputs and targets are there when a step begins");
}

TEST_F(Verify, RefusesALimitBelowWhatIsThereFromTheStart) {
  rank().limit_bytes = 110;
  EXPECT_EQ(refusal(-1),
            "weights, state and inputs hold 111 bytes before the first instruction; the limit is "
            "110");
}

TEST_F(Verify, RefusesNumbersOfNoValue) {
  const Program sound = program_;
  for (const auto list : {&Instruction::reads,
                          &Instruction::makes,
                          &Instruction::sets,
                          &Instruction::updates,
                          &Instruction::frees}) {
    for (const ValueId id : {-1, 9}) {
      program_ = sound;
      (line(kForwardB).*list).push_back(id);
      EXPECT_EQ(refusal(kForwardB), "there is no value number " + std::to_string(id));
    }
  }
}

TEST_F(Verify, RefusesToReadOrFreeWhatIsNotThere) {
  const Program sound = program_;
  std::swap(line(kForwardA), line(kForwardB));
  EXPECT_EQ(refusal(0), "reads x1.0, which nothing has made yet");
  program_ = sound;
  line(kForwardA).frees = {kX2};
  EXPECT_EQ(refusal(kForwardA), "frees x2.0, which nothing has made yet");
  program_ = sound;
  line(kForwardB).frees = {kX1};
  EXPECT_EQ(refusal(kBackwardB), "reads x1.0, which was freed by instruction 1");
  program_ = sound;
  line(kBackwardA).frees.push_back(kX2);
  EXPECT_EQ(refusal(kBackwardA), "frees x2.0, which was freed by instruction 3");
}

TEST_F(Verify, RefusesToMakeAValueTwice) {
  const Program sound = program_;
  insert(kForwardB, line(kForwardA));
  EXPECT_EQ(refusal(kForwardB), "makes x1.0, which was made by instruction 0");
  program_ = sound;
  line(kForwardA).makes.push_back(kX0);
  EXPECT_EQ(refusal(kForwardA), "makes x0.0, which was given at the start");
  program_ = sound;
  line(kForwardA).makes.push_back(kWeights);
  EXPECT_EQ(refusal(kForwardA), "makes k0, which was held from step to step");
  program_ = sound;
  line(kForwardA).makes.push_back(kX1);
  EXPECT_EQ(refusal(kForwardA), "makes x1.0, which was made by instruction 0");
}

TEST_F(Verify, RefusesToFreeTwiceAtOnce) {
  line(kBackwardB).frees.push_back(kS1);
  EXPECT_EQ(refusal(kBackwardB), "frees s1.0 twice");
}

TEST_F(Verify, RefusesNegativeSecondsAndBytes) {
  const Program sound = program_;
  line(kLoss).seconds = -1;
  EXPECT_EQ(refusal(kLoss), "has negative seconds, working bytes or sent bytes");
  program_ = sound;
  line(kLoss).seconds = std::nan("");
  EXPECT_EQ(refusal(kLoss), "has negative seconds, working bytes or sent bytes");
  program_ = sound;
  line(kLoss).working_bytes = -1;
  EXPECT_EQ(refusal(kLoss), "has negative seconds, working bytes or sent bytes");
  program_ = sound;
  line(kLoss).sent_bytes = -1;
  EXPECT_EQ(refusal(kLoss), "has negative seconds, working bytes or sent bytes");
}

TEST_F(Verify, RefusesADropThatDoesMoreOrNothing) {
  const Program sound = program_;
  insert(kForwardB, {.op = Op::Drop});
  EXPECT_EQ(refusal(kForwardB), "a drop frees values and does nothing else");
  program_ = sound;
  insert(kForwardB, {.op = Op::Drop, .reads = {kX1}, .frees = {kX1}});
  EXPECT_EQ(refusal(kForwardB), "reads 1 values, not 0");
  program_ = sound;
  const ValueId made = add_value(layer_value(ValueKind::Activation, 1, 0, 0));
  insert(kForwardB, {.op = Op::Drop, .makes = {made}, .frees = {made}});
  EXPECT_EQ(refusal(kForwardB), "makes 1 values, not 0");
}

TEST_F(Verify, AStepWithoutUnitsReadsADecisionAtMost) {
  const Program sound = program_;
  line(kBackwardA).frees = {kX1, kS0, kD1};
  line(kStep).reads = {kX0};
  line(kStep).frees = {kX0};
  EXPECT_EQ(refusal(kStep), "reads x0.0, which is no decision");
  line(kStep).reads = {kX0, kX0};
  EXPECT_EQ(refusal(kStep), "reads 2 values, not 1");
  program_ = sound;
  line(kStep).makes = {add_value({.kind = ValueKind::Squares, .version = 0})};
  EXPECT_EQ(refusal(kStep), "makes 1 values, not 0");
  program_ = sound;
  const ValueId squares = add_value({.kind = ValueKind::Squares, .version = 0});
  const ValueId decision = add_value({.kind = ValueKind::Decision, .version = 0});
  line(kStep).reads = line(kStep).frees = {decision};
  insert(kStep, {.op = Op::Decide, .reads = {squares}, .makes = {decision}, .frees = {squares}});
  insert(kStep, {.op = Op::Squares, .makes = {squares}});
  EXPECT_TRUE(verify(program_).is_sound()) << refusal_anywhere();
}

TEST_F(Verify, RefusesASecondStepAndWorkAfterIt) {
  const Program sound = program_;
  insert(kStep, line(kStep));
  EXPECT_EQ(refusal(kStep + 1), "a second step");
  program_ = sound;
  line(kBackwardA).frees = {kX1, kS0, kD1};
  const ValueId again = add_value(layer_value(ValueKind::Activation, 1, 0, 4));
  insert(kStep + 1,
         {.op = Op::Forward,
          .layer = 0,
          .micro_batch = 0,
          .reads = {kX0},
          .makes = {again},
          .frees = {again, kX0},
          .working_bytes = 4});
  EXPECT_EQ(refusal(kStep + 1), "comes after the step");
}

TEST_F(Verify, RefusesAnOperationThatDoesNotExist) {
  line(kForwardA).op = static_cast<Op>(99);
  std::string text;
  EXPECT_NO_THROW(text = verify(program_).violation.value_or(Violation{}).text);
  EXPECT_NE(text.find("no such operation"), std::string::npos) << text;
}

TEST_F(Verify, RefusesLayersAndMicroBatchesThatDoNotExist) {
  const Program sound = program_;
  for (const int32_t layer : {-1, 2}) {
    for (const int index : {kForwardA, kBackwardA}) {
      program_ = sound;
      line(index).layer = layer;
      EXPECT_EQ(refusal(index), "there is no layer " + std::to_string(layer));
    }
  }
  for (const int32_t micro_batch : {-1, 1}) {
    for (const int index : {kForwardA, kLoss, kBackwardA}) {
      program_ = sound;
      line(index).micro_batch = micro_batch;
      EXPECT_EQ(refusal(index), "there is no micro-batch " + std::to_string(micro_batch));
    }
  }
}

TEST_F(Verify, NamesTheValueThatAnOperationMustReadOrMake) {
  const Program sound = program_;
  const auto without = [&](int index, std::vector<ValueId> Instruction::*list, ValueId id) {
    program_ = sound;
    auto& ids = line(index).*list;
    // Another value stands in its place: the count is right, the value is not.
    const ValueKind kind = id == kTargets ? ValueKind::Activation : ValueKind::Targets;
    const ValueId other = add_value(layer_value(kind, 0, 0, 0));
    std::replace(ids.begin(), ids.end(), id, other);
    if (list == &Instruction::reads) {
      rank().given.push_back(other);
    }
    return refusal(index);
  };
  EXPECT_EQ(without(kForwardA, &Instruction::reads, kX0), "does not read x0.0");
  EXPECT_EQ(without(kForwardA, &Instruction::makes, kX1), "does not make x1.0");
  EXPECT_EQ(without(kForwardA, &Instruction::makes, kS0), "does not make s0.0");
  EXPECT_EQ(without(kLoss, &Instruction::reads, kX2), "does not read x2.0");
  EXPECT_EQ(without(kLoss, &Instruction::reads, kTargets), "does not read t.0");
  EXPECT_EQ(without(kLoss, &Instruction::makes, kD2), "does not make d2.0");
  EXPECT_EQ(without(kBackwardB, &Instruction::reads, kX1), "does not read x1.0");
  EXPECT_EQ(without(kBackwardB, &Instruction::reads, kS1), "does not read s1.0");
  EXPECT_EQ(without(kBackwardB, &Instruction::reads, kD2), "does not read d2.0");
  EXPECT_EQ(without(kBackwardB, &Instruction::reads, kX2), "does not read x2.0");
  EXPECT_EQ(without(kBackwardB, &Instruction::makes, kD1), "does not make d1.0");
}

TEST_F(Verify, RefusesTheRightValueOfAnotherMicroBatch) {
  program_.micro_batches = 2;
  const ValueId other = add_value(layer_value(ValueKind::Activation, 0, 1, 10));
  rank().given.push_back(other);
  line(kForwardA).reads = {other};
  EXPECT_EQ(refusal(kForwardA), "does not read x0.0");
}

TEST_F(Verify, RefusesTooManyAndTooFewValues) {
  const Program sound = program_;
  line(kForwardA).reads.push_back(kTargets);
  EXPECT_EQ(refusal(kForwardA), "reads 2 values, not 1");
  program_ = sound;
  line(kForwardA).makes = {kS0};
  EXPECT_EQ(refusal(kForwardA), "makes 1 values, not 2");  // this mode needs the output
  program_ = sound;
  line(kForwardA).keep = kKeepNothing;
  EXPECT_EQ(refusal(kForwardA), "makes 2 values, not 1");
  program_ = sound;
  line(kLoss).reads = {kX2};
  EXPECT_EQ(refusal(kLoss), "reads 1 values, not 2");
  program_ = sound;
  line(kLoss).makes = {};
  EXPECT_EQ(refusal(kLoss), "makes 0 values, not 1");
  program_ = sound;
  line(kBackwardB).reads = {kX1, kS1, kD2};
  EXPECT_EQ(refusal(kBackwardB), "reads 3 values, not 4");
  program_ = sound;
  line(kBackwardA).makes = {add_value(layer_value(ValueKind::Gradient, 0, 0, 10))};
  EXPECT_EQ(refusal(kBackwardA), "makes 1 values, not 0");  // nobody would read it
}

TEST_F(Verify, RefusesSaveModesThatTheLayerDoesNotHave) {
  const Program sound = program_;
  line(kForwardA).keep = 1;
  line(kForwardA).makes = {kS0};
  EXPECT_EQ(refusal(kForwardA), "the layer has no save mode number 1");
  // With its output made too.
  program_ = sound;
  line(kForwardA).keep = 1;
  EXPECT_NE(refusal_anywhere().find("the layer has no save mode number 1"), std::string::npos);
  program_ = sound;
  line(kForwardA).keep = -2;
  EXPECT_NE(refusal_anywhere().find("the layer has no save mode number -2"), std::string::npos);
}

TEST_F(Verify, ABackwardReadsTheOutputWhereItsSaveModeNeedsIt) {
  const Program sound = program_;
  line(kForwardB).keep = 1;  // "lean"
  EXPECT_EQ(refusal(kBackwardB), "reads 4 values, not 3");
  program_ = sound;
  line(kForwardB).keep = 1;
  line(kBackwardB).reads = {kX1, kS1, kD2};
  EXPECT_TRUE(verify(program_).is_sound());
}

TEST_F(Verify, RefusesStateAndOutputOfDifferentForwards) {
  const ValueId again = add_value(layer_value(ValueKind::Activation, 2, 0, 2));
  insert(kBackwardB,
         {.op = Op::Forward,
          .layer = 1,
          .micro_batch = 0,
          .reads = {kX1},
          .makes = {again},
          .frees = {kX2},
          .working_bytes = 2});
  Instruction& backward = line(kBackwardB + 1);
  backward.reads = {kX1, kS1, kD2, again};
  backward.frees = {again, kS1, kD2};
  EXPECT_EQ(refusal(kBackwardB + 1), "reads s1.0 and x2.0#2, which were made apart");
}

TEST_F(Verify, RefusesASecondLossOrBackward) {
  const Program sound = program_;
  const ValueId second_loss = add_value(layer_value(ValueKind::Gradient, 2, 0, 2));
  line(kLoss).frees = {};
  insert(kBackwardB,
         {.op = Op::Loss,
          .micro_batch = 0,
          .reads = {kX2, kTargets},
          .makes = {second_loss},
          .frees = {kTargets, second_loss},
          .working_bytes = 2});
  EXPECT_EQ(refusal(kBackwardB), "a second loss of this micro-batch");
  program_ = sound;
  const ValueId second_backward = add_value(layer_value(ValueKind::Gradient, 1, 0, 4));
  Instruction backward = line(kBackwardB);
  line(kBackwardB).frees = {};
  backward.makes = {second_backward};
  insert(kBackwardA, backward);
  EXPECT_EQ(refusal(kBackwardA), "a second backward of this layer and micro-batch");
}

TEST_F(Verify, RefusesAStepBeforeTheGradientsAreComplete) {
  const Program sound = program_;
  std::swap(line(kBackwardA), line(kStep));
  EXPECT_EQ(refusal(kBackwardA), "the backward of a, micro-batch 0, is missing");
  program_ = sound;
  program_.micro_batches = 2;
  EXPECT_EQ(refusal(kStep), "the loss of micro-batch 1 is missing");
}

TEST_F(Verify, RefusesAnInstructionThatLeavesMoreThanItWorkedWith) {
  line(kForwardA).working_bytes = 9;
  EXPECT_EQ(refusal(kForwardA), "works with 9 bytes, less than what it leaves behind");
}

TEST_F(Verify, HoldsTheLimitAtEveryInstruction) {
  rank().limit_bytes = 132;
  EXPECT_TRUE(verify(program_).is_sound());
  rank().limit_bytes = 131;
  EXPECT_EQ(refusal(kBackwardA),
            "holds 132 bytes, 1 over the limit of 131; the largest value then is x0.0");
}

TEST_F(Verify, RefusesValuesNeverMadeOrNeverFreed) {
  const Program sound = program_;
  add_value(layer_value(ValueKind::Activation, 1, 0, 4));
  EXPECT_EQ(refusal(-1), "x1.0#2 is never made");
  program_ = sound;
  line(kBackwardB).frees = {kX2, kD2};
  EXPECT_EQ(refusal(-1), "s1.0, made by instruction 1, is never freed");
  program_ = sound;
  line(kBackwardA).frees = {kX1, kS0, kD1};
  EXPECT_EQ(refusal(-1), "x0.0, given at the start, is never freed");
}

TEST_F(Verify, RefusesAProgramWithoutAStep) {
  erase(kStep);
  EXPECT_EQ(refusal(-1), "there is no step");
}

TEST_F(Verify, NamesTheRankWhereThereAreSeveral) {
  program_.ranks.push_back(rank());
  program_.mesh.pipeline = 2;
  const Verdict doubled = verify(program_);
  ASSERT_FALSE(doubled.is_sound());
  EXPECT_EQ(doubled.violation->rank, 1);
  EXPECT_EQ(doubled.violation->instruction, kForwardA);
  EXPECT_EQ(
      doubled.violation->text,
      "rank 1, instruction 0 (forward of a, micro-batch 0): rank 0 has this layer's parameters");
}

TEST_F(Verify, RefusesWrongHeldValues) {
  const Program sound = program_;
  rank().persistent.push_back(99);
  EXPECT_EQ(refusal(-1), "there is no value number 99 to be held");
  program_ = sound;
  rank().persistent.push_back(-1);
  EXPECT_EQ(refusal(-1), "there is no value number -1 to be held");
  program_ = sound;
  rank().persistent.push_back(kWeights);
  EXPECT_EQ(refusal(-1), "k0 is held twice");
  program_ = sound;
  rank().given.push_back(kWeights);
  EXPECT_EQ(refusal(-1), "k0 is given twice");
  program_ = sound;
  rank().persistent.push_back(add_value(layer_value(ValueKind::Saved, 0, 0, 1)));
  EXPECT_EQ(refusal(-1), "s0.0#2 is held from step to step; only weights, gradients and state are");
  program_ = sound;
  rank().persistent.clear();
  rank().given.push_back(kWeights);
  EXPECT_EQ(refusal(-1), "k0 is given; only inputs and targets are there when a step begins");
  program_ = sound;
  rank().persistent.clear();
  EXPECT_EQ(refusal(-1), "k0 is never made");
}

TEST_F(Verify, RefusesToFreeOrChangeWhatIsHeldOrNeverMoves) {
  const Program sound = program_;
  line(kBackwardA).frees.push_back(kWeights);
  EXPECT_EQ(refusal(kBackwardA), "frees k0, which is held from step to step");
  const std::string rest = "; only weights, gradients and state are changed in place";
  for (const auto list : {&Instruction::sets, &Instruction::updates}) {
    program_ = sound;
    line(kForwardB).*list = {kWeights};
    EXPECT_EQ(refusal(kForwardB), "changes k0" + rest);
    program_ = sound;
    line(kForwardB).*list = {kX1};
    EXPECT_EQ(refusal(kForwardB), "changes x1.0" + rest);
    program_ = sound;
    line(kForwardB).*list = {kD1};
    EXPECT_EQ(refusal(kForwardB), "changes d1.0, which nothing has made yet");
    program_ = sound;
    line(kBackwardA).*list = {kX2};
    EXPECT_EQ(refusal(kBackwardA), "changes x2.0, which was freed by instruction 3");
  }
  program_ = sound;
  const ValueId state = rank().hold({.kind = ValueKind::RankState, .bytes = 1}, "history");
  line(kForwardB).updates = {state};
  EXPECT_EQ(refusal(kForwardB), "changes 1 values in place, not 0");
}

TEST_F(Verify, RefusesValuesWithFieldsOfOtherKinds) {
  const std::string rest = " belongs to no layer, unit, micro-batch or update of the program";
  const Program sound = program_;
  const auto expect_refused = [&](const Value& one, const std::string& name) {
    program_ = sound;
    add_value(one);
    EXPECT_EQ(refusal(-1), name + rest);
  };
  using enum ValueKind;
  expect_refused({.kind = Targets, .layer = 0, .micro_batch = 0}, "t.0#2");
  expect_refused({.kind = Activation, .layer = 0, .unit = 0, .micro_batch = 0}, "x0.0#2");
  expect_refused({.kind = Activation, .layer = 0, .micro_batch = 0, .version = 0}, "x0.0#2");
  expect_refused({.kind = Activation, .layer = 0, .micro_batch = 0, .label = 0}, "x0.0#2");
  expect_refused({.kind = Stashed, .version = 1}, "v.1");
  expect_refused({.kind = Stashed, .version = -1}, "v.-1");
  expect_refused({.kind = Stashed, .micro_batch = 0, .version = 0}, "v.0");
  expect_refused({.kind = Master, .unit = 0}, "m0");
  expect_refused({.kind = Gathered, .unit = 0, .micro_batch = 0}, "p0.0");
  expect_refused({.kind = Fixed, .label = 1}, "k1");
  expect_refused({.kind = RankState, .label = -1}, "e-1");
  expect_refused({.kind = Fixed, .label = 0, .slices = {{0, 1}}}, "k0#2");
  expect_refused({.kind = Activation, .layer = 0, .micro_batch = 0, .slices = {{0, 1}}}, "x0.0#2");
}

TEST_F(Verify, RefusesFieldsThatAnOperationHasNoUseFor) {
  const Program sound = program_;
  const auto expect_refused = [&](int index, const auto& change) {
    program_ = sound;
    change(line(index));
    EXPECT_EQ(refusal(index), "names units, a group or sent bytes, and has no use for them");
  };
  expect_refused(kForwardA, [](Instruction& one) { one.units = {0}; });
  expect_refused(kLoss, [](Instruction& one) { one.group = 0; });
  expect_refused(kBackwardA, [](Instruction& one) { one.scatters = true; });
  expect_refused(kStep, [](Instruction& one) { one.sent_bytes = 1; });
}

TEST_F(Verify, RefusesResourcesOfOtherOperations) {
  const Program sound = program_;
  const auto refusal_on = [&](Resource resource) {
    program_ = sound;
    line(kForwardB).resource = resource;
    return refusal(kForwardB);
  };
  const std::string text = "only a send is on a link, only a receive on an inlet";
  EXPECT_EQ(refusal_on({ResourceKind::Link, 1}), text);
  EXPECT_EQ(refusal_on({ResourceKind::Inlet, 1}), text);
  EXPECT_EQ(refusal_on({ResourceKind::Line, 0}),
            "only gathers and reduces of its group are on a line");
  program_ = sound;
  for (const ResourceKind kind :
       {ResourceKind::HostCompute, ResourceKind::Copy, ResourceKind::Disk}) {
    line(kForwardB).resource = {kind, 0};
    EXPECT_TRUE(verify(program_).is_sound());
  }
}

TEST_F(Verify, CountsEachTierForItself) {
  value(kX1).tier = Tier::Host;  // 4 bytes
  value(kS0).tier = Tier::Disk;  // 6 bytes
  rank().hold({.kind = ValueKind::Fixed, .tier = Tier::Host, .bytes = 50}, "staging");
  Verdict verdict = verify(program_);
  ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
  // The device is highest in the last backward, without what the other tiers hold then.
  EXPECT_EQ(verdict.peaks[0].tier_bytes, (std::array<int64_t, kNumTiers>{132 - 4 - 6, 54, 6}));
  EXPECT_EQ(verdict.peaks[0].bytes, 122);
  EXPECT_EQ(verdict.peaks[0].instruction, kBackwardA);
  const Peak replayed = replay_peak(rank());
  EXPECT_EQ(replayed.tier_bytes, verdict.peaks[0].tier_bytes);
  EXPECT_EQ(replayed.bytes, 122);
  EXPECT_EQ(replayed.instruction, kBackwardA);
  EXPECT_EQ(tiers_of(rank()), (std::vector<Tier>{Tier::Device, Tier::Host, Tier::Disk}));
  rank().limit_bytes = 122;
  rank().host_limit_bytes = 54;
  rank().disk_limit_bytes = 6;
  EXPECT_TRUE(verify(program_).is_sound());
}

TEST_F(Verify, HoldsTheLimitOfEveryTier) {
  value(kX1).tier = Tier::Host;  // 4 bytes
  value(kS0).tier = Tier::Disk;  // 6 bytes
  rank().hold({.kind = ValueKind::Fixed, .tier = Tier::Host, .bytes = 50}, "staging");
  const Program sound = program_;
  rank().host_limit_bytes = 53;
  EXPECT_EQ(refusal(kForwardA),
            "holds 54 bytes of the host, 1 over the limit of 53; the largest value then is x1.0");
  rank().host_limit_bytes = 49;
  EXPECT_EQ(refusal(-1),
            "weights, state and inputs hold 50 bytes of the host before the first instruction; the "
            "limit is 49");
  program_ = sound;
  rank().disk_limit_bytes = 5;
  EXPECT_EQ(refusal(kForwardA),
            "holds 6 bytes of the disk, 1 over the limit of 5; the largest value then is s0.0");
  program_ = sound;
  value(kX0).tier = Tier::Disk;
  rank().disk_limit_bytes = 9;
  EXPECT_EQ(refusal(-1),
            "weights, state and inputs hold 10 bytes of the disk before the first instruction; the "
            "limit is 9");
  // The largest of all is on another tier.
  program_ = sound;
  value(kX0).tier = Tier::Host;
  rank().limit_bytes = 111;
  EXPECT_EQ(refusal(kBackwardA),
            "holds 112 bytes, 1 over the limit of 111; the largest value then is d1.0");
}

// What an instruction leaves on another tier is no part of its working bytes.
TEST_F(Verify, WorkingBytesAreOfTheDevice) {
  value(kS0).tier = Tier::Host;
  line(kForwardA).working_bytes = 4;
  EXPECT_TRUE(verify(program_).is_sound());
  line(kForwardA).working_bytes = 3;
  EXPECT_EQ(refusal(kForwardA), "works with 3 bytes, less than what it leaves behind");
}

TEST_F(Verify, RefusesExtentsThatDoNotExist) {
  const Program sound = program_;
  program_.ranks.clear();
  EXPECT_EQ(verify(program_).violation->text, "the program has no rank");
  program_ = sound;
  program_.mesh.tensor = 0;
  EXPECT_EQ(refusal(-1), "the axis tensor has 0 ranks");
  program_ = sound;
  program_.mesh.data = 2;
  EXPECT_EQ(refusal(-1), "1 ranks in a mesh of 2");
  for (const int32_t micro_batches : {0, -1}) {
    program_ = sound;
    program_.micro_batches = micro_batches;
    EXPECT_EQ(refusal(-1), "1 updates of " + std::to_string(micro_batches) + " micro-batches");
  }
  for (const std::vector<int32_t>& stages :
       std::vector<std::vector<int32_t>>{{1}, {-1}, {0, 0}, {0, 1}}) {
    program_ = sound;
    program_.groups = {comm::among_stages("table", stages)};
    EXPECT_EQ(refusal(-1), "the stages of group table are out of order or out of range");
  }
}

TEST_F(Verify, RefusesLayersAndALossThatNoRankHas) {
  program_.ranks.push_back({.instructions = {{.op = Op::Step}}});
  program_.mesh.pipeline = 2;
  program_.layers.push_back({"c", {}});
  // The loss is now that of three layers.
  program_.ranks[0].values[kTargets].bytes = 1;
  const std::string without_loss = verify(program_).violation->text;
  EXPECT_EQ(without_loss, "rank 0, instruction 2 (loss, micro-batch 0): does not read x3.0");
  rank().instructions = {{.op = Op::Drop, .frees = {kX0, kTargets}}, {.op = Op::Step}};
  rank().values.resize(3);
  EXPECT_EQ(verify(program_).violation->text, "the program: no rank has a");
  program_.layers.clear();
  rank().values[kX0].layer = 0;
  EXPECT_EQ(verify(program_).violation->text, "the program: no rank has the loss");
}

}  // namespace penstock::program
