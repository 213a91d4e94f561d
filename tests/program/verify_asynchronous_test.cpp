// What the verifier refuses of programs with several updates, each by one that is broken in one
// place.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/program/verify.h"

#include "program/asynchronous_program.h"

namespace penstock::program {

namespace {

using namespace penstock::test;  // NOLINT: the names of the small program's lines

class VerifyAsynchronous : public testing::Test {
 protected:
  Instruction& line(int index) { return rank().instructions[static_cast<size_t>(index)]; }
  RankProgram& rank() { return program_.ranks[0]; }
  void insert(int before, Instruction instruction) {
    rank().instructions.insert(rank().instructions.begin() + before, std::move(instruction));
  }
  void erase(int index) { rank().instructions.erase(rank().instructions.begin() + index); }
  void move(int from, int to) {
    const Instruction moved = line(from);
    erase(from);
    insert(to, moved);
  }
  ValueId copy() { return named("v.0"); }
  ValueId named(const std::string& name) {
    const std::vector<std::string> names = value_names(rank());
    return static_cast<ValueId>(std::find(names.begin(), names.end(), name) - names.begin());
  }
  ValueId add_value(const Value& one) {
    rank().values.push_back(one);
    return static_cast<ValueId>(rank().values.size() - 1);
  }
  Value& value(ValueId id) { return rank().values[static_cast<size_t>(id)]; }

  // The text after the instruction at fault, which must be number `index` (-1: none in particular).
  std::string refusal(int index) {
    const Verdict verdict = verify(program_);
    if (verdict.is_sound()) {
      ADD_FAILURE() << "accepted";
      return "";
    }
    EXPECT_EQ(verdict.violation->instruction, index) << verdict.violation->text;
    const std::string where =
        index < 0 ? "the program: "
                  : cat("instruction ", index, " (", describe(program_, line(index)), "): ");
    EXPECT_EQ(verdict.violation->text.substr(0, where.size()), where);
    return verdict.violation->text.substr(std::min(where.size(), verdict.violation->text.size()));
  }

  Program program_ = asynchronous_program();
};

}  // namespace

TEST_F(VerifyAsynchronous, AcceptsTheSmallProgramAndCountsTheCopy) {
  const Verdict verdict = verify(program_);
  ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
  // What is held, the copy, the second micro-batch with all that its forward left, and the gradient.
  EXPECT_EQ(verdict.peaks[0].bytes, 20 + 10 + 4 + 1 + 10 + 4);
  EXPECT_EQ(verdict.peaks[0].instruction, kSecondLoss);
}

TEST_F(VerifyAsynchronous, RefusesACopyOfAnotherVersion) {
  value(copy()).version = 1;
  EXPECT_EQ(refusal(kStash), "makes v.1 of weights that have had 0 updates");
  program_ = asynchronous_program();
  move(kStash, kFirstStep);
  EXPECT_EQ(refusal(kFirstStep), "makes v.0 of weights that have had 1 updates");
}

TEST_F(VerifyAsynchronous, RefusesAStashThatIsNone) {
  line(kStash).reads = {named("x0.1")};
  EXPECT_EQ(refusal(kStash), "does not read m0");
  line(kStash).reads = {named("m0"), named("x0.1")};
  EXPECT_EQ(refusal(kStash), "reads 2 values, not 1");
  program_ = asynchronous_program();
  line(kStash).makes = {};
  EXPECT_EQ(refusal(kStash), "makes 0 values, not 1");
  program_ = asynchronous_program();
  std::swap(line(kStash).makes, line(kSecondLoss).makes);
  EXPECT_EQ(refusal(kStash), "makes d1.1 of weights that have had 0 updates");
}

TEST_F(VerifyAsynchronous, RefusesGivenWeights) {
  rank().given.push_back(copy());
  EXPECT_EQ(refusal(-1), "v.0 is given; only inputs and targets are there when a step begins");
}

TEST_F(VerifyAsynchronous, RefusesABackwardWithOtherWeightsThanItsForward) {
  std::vector<ValueId>& reads = line(kSecondBackward).reads;
  std::replace(reads.begin(), reads.end(), copy(), named("m0"));
  EXPECT_EQ(refusal(kSecondBackward),
            "works with weights after 1 updates, and the micro-batch went forward with those after "
            "0");
  program_.mixes_weights = true;
  EXPECT_TRUE(verify(program_).is_sound());
}

TEST_F(VerifyAsynchronous, RefusesALossWithOtherWeightsThanItsForward) {
  std::erase(line(kSecondLoss).reads, copy());
  EXPECT_EQ(refusal(kSecondLoss),
            "works with weights after 1 updates, and the micro-batch went forward with those after "
            "0");
}

TEST_F(VerifyAsynchronous, RefusesAWeightGradientWithOtherWeightsThanItsForward) {
  const ValueId work = add_value(layer_value(ValueKind::WeightWork, 0, 1, 0));
  line(kSecondBackward).op = Op::BackwardInput;
  line(kSecondBackward).makes = {work};
  insert(kSecondSquares,
         {.op = Op::BackwardWeight,
          .layer = 0,
          .micro_batch = 1,
          .reads = {work},
          .updates = {named("a0")},
          .frees = {work}});
  EXPECT_EQ(refusal(kSecondSquares),
            "works with weights after 1 updates, and the micro-batch went forward with those after "
            "0");
}

TEST_F(VerifyAsynchronous, RefusesTwoVersionsAtOnce) {
  line(kSecondForward).reads.push_back(copy());
  EXPECT_EQ(refusal(kSecondForward), "reads two versions of the weights");
}

// Work with a copy reads that, and not the weights beside it.
TEST_F(VerifyAsynchronous, RefusesWeightsBesideTheCopy) {
  line(kSecondForward).reads.push_back(named("m0"));
  EXPECT_EQ(refusal(kSecondForward), "reads 3 values, not 2");
}

TEST_F(VerifyAsynchronous, RefusesACopyThatIsGone) {
  line(kSecondLoss).frees.push_back(copy());
  EXPECT_EQ(refusal(kSecondBackward), "reads v.0, which was freed by instruction 8");
}

TEST_F(VerifyAsynchronous, RefusesAGradientOfTheNextUpdate) {
  // The second micro-batch goes forward and into the loss before the first update.
  auto& list = rank().instructions;
  std::vector<ValueId>& reads = line(kSecondForward).reads;
  std::replace(reads.begin(), reads.end(), copy(), named("m0"));
  std::erase(line(kSecondLoss).reads, copy());
  std::rotate(list.begin() + kStash, list.begin() + kSecondForward, list.begin() + kSecondBackward);
  EXPECT_EQ(refusal(kStash + 1),
            "adds to the gradients of update 0; the micro-batch is of update 1");
}

TEST_F(VerifyAsynchronous, EachUpdateSetsItsGradients) {
  for (const int backward : {kFirstBackward, kSecondBackward}) {
    program_ = asynchronous_program();
    std::swap(line(backward).sets, line(backward).updates);
    EXPECT_EQ(refusal(backward), "updates what an earlier update has left in a0");
    line(backward).updates.clear();
    EXPECT_EQ(refusal(backward), "does not set a0");
  }
}

TEST_F(VerifyAsynchronous, SquaresAndDecisionsAreOfTheirUpdate) {
  value(named("q.1")).version = 0;
  EXPECT_EQ(refusal(kSecondSquares), "does not make q.1");
  program_ = asynchronous_program();
  value(named("n.1")).version = 0;
  EXPECT_EQ(refusal(kSecondDecide), "does not make n.1");
  program_ = asynchronous_program();
  std::erase(line(kFirstDecide).frees, named("q.0"));
  line(kSecondDecide).reads = {named("q.0")};
  EXPECT_EQ(refusal(kSecondDecide), "reads q.0; it takes the rank's squares of this update");
  program_ = asynchronous_program();
  line(kFirstStep).frees.clear();
  std::replace(
      line(kSecondStep).reads.begin(), line(kSecondStep).reads.end(), named("n.1"), named("n.0"));
  EXPECT_EQ(refusal(kSecondStep), "does not read n.1");
}

TEST_F(VerifyAsynchronous, RefusesTooManyAndTooFewSteps) {
  insert(kSecondStep + 1, {.op = Op::Step});
  EXPECT_EQ(refusal(kSecondStep + 1), "more steps than updates");
  program_ = asynchronous_program();
  erase(kSecondStep);
  line(kSecondDecide).frees.push_back(named("n.1"));
  EXPECT_EQ(refusal(-1), "there are 1 steps for 2 updates");
}

TEST_F(VerifyAsynchronous, RefusesAnUpdateBeforeItsGradientsAreComplete) {
  move(kSecondBackward, kSecondSquares);
  EXPECT_EQ(refusal(kSecondSquares - 1), "the backward of a, micro-batch 1, is missing");
}

TEST_F(VerifyAsynchronous, RefusesWorkAfterTheLastStep) {
  const ValueId input = named("x0.1");
  std::erase(line(kSecondBackward).frees, input);
  const ValueId again = add_value(layer_value(ValueKind::Activation, 1, 1, 0));
  insert(kSecondStep + 1,
         {.op = Op::Forward,
          .layer = 0,
          .micro_batch = 1,
          .reads = {input, named("m0")},
          .makes = {again},
          .frees = {input, again}});
  EXPECT_EQ(refusal(kSecondStep + 1), "comes after the last step");
}

TEST_F(VerifyAsynchronous, RefusesWhatHasNoMeaningAfterTheLastStep) {
  const ValueId made = add_value({.kind = ValueKind::Stashed, .version = 1});
  for (const Op op : {Op::Stash, Op::Squares, Op::Decide, Op::Reduce, Op::Add, Op::Gather}) {
    program_ = asynchronous_program();
    rank().values.push_back({.kind = ValueKind::Stashed, .version = 1});
    insert(kSecondStep + 1, {.op = op, .makes = {made}, .frees = {made}});
    EXPECT_EQ(refusal(kSecondStep + 1), "comes after the last step") << op_name(op);
  }
}

TEST_F(VerifyAsynchronous, RefusesUpdatesThatDoNotDivideTheMicroBatches) {
  for (const int32_t updates : {3, -1}) {
    program_.updates = updates;
    EXPECT_EQ(refusal(-1), cat(updates, " updates of 2 micro-batches"));
  }
}

namespace {

// Two layers, each with its unit. Each update moves them one after the other, and between the two
// the next micro-batch enters the layer whose weights have not moved.
class VerifySplitSteps : public VerifyAsynchronous {
 protected:
  enum Line { kBackwardA = 4, kCopy, kSquares, kDecide, kStepB, kForwardA, kStepA, kForwardB };

  static Program split_program() {
    return parse_program(
        R"(penstock-program 2
micro-batches 2
updates 2 weights=kept
layer 0 "a" modes=all
layer 1 "b" modes=all
unit 0 "a" layers=0
unit 1 "b" layers=1
rank 0 limit=none
hold m0:1 a0:1 o0:1 m1:1 a1:1 o1:1
hold e0:1 "history"
given x0.0:1 t.0:1 x0.1:1 t.1:1
forward layer=0 mb=0 keep=all reads=x0.0,m0 makes=x1.0:1,s0.0:1 frees=- on=compute seconds=1 working=2
forward layer=1 mb=0 keep=all reads=x1.0,m1 makes=x2.0:1,s1.0:1 frees=- on=compute seconds=1 working=2
loss mb=0 reads=x2.0,t.0 makes=d2.0:1 frees=x2.0,t.0 on=compute seconds=1 working=1
backward layer=1 mb=0 reads=x1.0,s1.0,d2.0,m1 makes=d1.0:1 sets=a1 frees=x1.0,s1.0,d2.0 on=compute seconds=1 working=1
backward layer=0 mb=0 reads=x0.0,s0.0,d1.0,m0 makes=- sets=a0 frees=x0.0,s0.0,d1.0 on=compute seconds=1 working=0
stash reads=m0,m1 makes=v.0:2 on=compute seconds=1 working=2
squares reads=a0,a1 makes=q.0:0 on=compute seconds=0 working=0
decide reads=q.0 makes=n.0:0 frees=q.0 on=compute seconds=0 working=0
step units=1 reads=a1,n.0 updates=m1,o1,e0 on=compute seconds=1 working=0
forward layer=0 mb=1 keep=all reads=x0.1,m0 makes=x1.1:1,s0.1:1 frees=- on=compute seconds=1 working=2
step units=0 reads=a0,n.0 updates=m0,o0,e0 frees=n.0 on=compute seconds=1 working=0
forward layer=1 mb=1 keep=all reads=x1.1,v.0 makes=x2.1:1,s1.1:1 frees=- on=compute seconds=1 working=2
loss mb=1 reads=x2.1,t.1,v.0 makes=d2.1:1 frees=x2.1,t.1 on=compute seconds=1 working=1
backward layer=1 mb=1 reads=x1.1,s1.1,d2.1,v.0 makes=d1.1:1 sets=a1 frees=x1.1,s1.1,d2.1 on=compute seconds=1 working=1
backward layer=0 mb=1 reads=x0.1,s0.1,d1.1,v.0 makes=- sets=a0 frees=x0.1,s0.1,d1.1,v.0 on=compute seconds=1 working=0
squares reads=a0,a1 makes=q.1:0 on=compute seconds=0 working=0
decide reads=q.1 makes=n.1:0 frees=q.1 on=compute seconds=0 working=0
step units=0,1 reads=a0,a1,n.1 updates=m0,o0,m1,o1,e0 frees=n.1 on=compute seconds=1 working=0
)",
        "the split program");
  }

  void SetUp() override { program_ = split_program(); }
};

}  // namespace

TEST_F(VerifySplitSteps, UnitsMoveOneAfterTheOther) {
  const Verdict verdict = verify(program_);
  EXPECT_TRUE(verdict.is_sound()) << verdict.violation->text;
}

// Its weights have moved, even if the update has not ended; the backward works with the copy.
TEST_F(VerifySplitSteps, RefusesAForwardWithTheMovedUnit) {
  std::swap(line(kForwardA), line(kStepA));
  EXPECT_EQ(refusal(14),
            "works with weights after 0 updates, and the micro-batch went forward with those after "
            "1");
}

TEST_F(VerifySplitSteps, RefusesALayerWithWeightsOfTwoVersions) {
  program_.units[1].layers = {0, 1};
  line(0).reads.push_back(named("m1"));
  line(kBackwardA).reads.push_back(named("m1"));
  line(kBackwardA).sets.push_back(named("a1"));
  EXPECT_EQ(refusal(kForwardA),
            "works with the weights of a after 0 updates and those of b after 1");
}

TEST_F(VerifySplitSteps, RefusesACopyOfTwoVersions) {
  move(kCopy, kStepB);
  EXPECT_EQ(refusal(kStepB), "copies the weights of b after 1 updates and others after 0");
}

TEST_F(VerifySplitSteps, RefusesAUnitThatMovesTwiceOrNever) {
  line(kStepA).units = {0, 1};
  EXPECT_EQ(refusal(kStepA), "moves b a second time");
  program_ = split_program();
  erase(kStepA);
  line(kForwardA).frees.push_back(named("n.0"));
  EXPECT_EQ(refusal(kForwardB),
            "adds to the gradients of update 0; the micro-batch is of update 1");
}

TEST_F(VerifySplitSteps, RefusesStepsThatDoNotSayWhatTheyMove) {
  const auto units_refusal = [&](std::vector<int32_t> units) {
    program_ = split_program();
    line(kStepB).units = std::move(units);
    return refusal(kStepB);
  };
  EXPECT_EQ(units_refusal({}), "moves no units, or names them out of order");
  EXPECT_EQ(units_refusal({1, 0}), "moves no units, or names them out of order");
  EXPECT_EQ(units_refusal({1, 1}), "moves no units, or names them out of order");
  EXPECT_EQ(units_refusal({2}), "there is no unit 2");
  EXPECT_EQ(units_refusal({-1}), "there is no unit -1");
  EXPECT_EQ(units_refusal({0}), "does not read a0");
}

}  // namespace penstock::program
